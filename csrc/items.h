// What the bindings of the bookkeeping read of Python's objects: the items of anything that has a buffer, and attributes.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace kv {

// The items of numpy's arrays and Python's: several times faster to get than an ndarray. An array of Python's can't grow
// while they are there.
template <class Item>
class Items {
 public:
  Items(nanobind::handle owner, bool is_written, int64_t num_at_least) {
    if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_C_CONTIGUOUS | (is_written ? PyBUF_WRITABLE : 0)))
      nanobind::raise_python_error();
    if (view_.itemsize != sizeof(Item) || size() < num_at_least) {
      PyBuffer_Release(&view_);
      throw nanobind::value_error("an array has items of another size, or too few of them");
    }
  }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;
  ~Items() { PyBuffer_Release(&view_); }
  Item* data() const { return static_cast<Item*>(view_.buf); }
  Item& operator[](int64_t at) const { return data()[at]; }
  int64_t size() const { return static_cast<int64_t>(view_.len) / static_cast<int64_t>(sizeof(Item)); }

 private:
  Py_buffer view_;
};

inline nanobind::object interned(const char* name) { return nanobind::steal(PyUnicode_InternFromString(name)); }

inline nanobind::object attribute(nanobind::handle of, const nanobind::object& name) {
  PyObject* found = PyObject_GetAttr(of.ptr(), name.ptr());
  if (found == nullptr) nanobind::raise_python_error();
  return nanobind::steal(found);
}

inline void set_attribute(nanobind::handle of, const nanobind::object& name, nanobind::handle value) {
  if (PyObject_SetAttr(of.ptr(), name.ptr(), value.ptr())) nanobind::raise_python_error();
}

inline int64_t whole_number(PyObject* number) {
  const int64_t value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) nanobind::raise_python_error();
  return value;
}

}  // namespace kv
