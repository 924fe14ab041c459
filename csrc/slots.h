// Objects of Python read by where things lie in them, not by name: slots of classes with __slots__, numpy's arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <cstdint>
#include <optional>

#include "items.h"

namespace kv {

// One slot of a class. REQUIRES, wherever an object is given: it is one of that class.
class Slot {
 public:
  Slot(nanobind::handle type, const char* name) {
    const nanobind::object found = type.attr(name);
    if (!PyObject_TypeCheck(found.ptr(), &PyMemberDescr_Type)) throw nanobind::type_error("the class has no such slot");
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member;
    if (member->type != T_OBJECT_EX) throw nanobind::type_error("the slot holds no object");
    offset_ = member->offset;
  }
  // Raises AttributeError where it is empty.
  nanobind::handle of(nanobind::handle object) const {
    PyObject* const found = place(object);
    if (found == nullptr) {
      PyErr_SetString(PyExc_AttributeError, "a slot is empty");
      nanobind::raise_python_error();
    }
    return found;
  }
  void set(nanobind::handle object, nanobind::object value) const {
    PyObject*& at = place(object);
    PyObject* const before = at;
    at = value.release().ptr();
    Py_XDECREF(before);  // last: it may run anything
  }

 private:
  PyObject*& place(nanobind::handle object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object.ptr()) + offset_);
  }
  Py_ssize_t offset_;
};

// How numpy's arrays begin: part of its ABI, since PyArray_DATA is compiled into every module that uses numpy.
struct NumpyArray {
  PyObject_HEAD
  char* data;
  int num_dims;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
};

// What to expect of a table's entries, learned from an array like them.
class EntriesLayout {
 public:
  explicit EntriesLayout(nanobind::handle int32_array) {
    const Items<int32_t> items(int32_array, false, 0);
    const auto* array = reinterpret_cast<const NumpyArray*>(int32_array.ptr());
    if (array->data != reinterpret_cast<const char*>(items.data()) || array->num_dims != 1) return;
    if (array->shape[0] != items.size() || array->strides[0] != sizeof(int32_t)) return;
    type_ = Py_TYPE(int32_array.ptr());
    dtype_ = array->dtype;
  }
  // Null where the array is another, or numpy's arrays are not laid out so.
  const NumpyArray* known(nanobind::handle array) const {
    if (Py_TYPE(array.ptr()) != type_) return nullptr;
    const auto* found = reinterpret_cast<const NumpyArray*>(array.ptr());
    const bool is_alike = found->dtype == dtype_ && found->num_dims == 1 && found->strides[0] == sizeof(int32_t);
    return is_alike ? found : nullptr;
  }

 private:
  PyTypeObject* type_ = nullptr;
  PyObject* dtype_ = nullptr;
};

// The entries of a page table, at least so many. Its buffer, which takes numpy long to give, only where it must be asked.
class Entries {
 public:
  Entries(const EntriesLayout& layout, nanobind::handle array, int64_t num_at_least) {
    if (const NumpyArray* found = layout.known(array)) {
      data_ = reinterpret_cast<int32_t*>(found->data);
      size_ = found->shape[0];
    } else {
      asked_.emplace(array, true, num_at_least);
      data_ = asked_->data();
      size_ = asked_->size();
    }
    if (size_ < num_at_least) throw nanobind::value_error("a page table has too few entries");
  }
  int32_t* data() const { return data_; }
  int32_t operator[](int64_t page) const { return data_[page]; }
  int64_t size() const { return size_; }

 private:
  int32_t* data_;
  int64_t size_;
  std::optional<Items<int32_t>> asked_;
};

}  // namespace kv
