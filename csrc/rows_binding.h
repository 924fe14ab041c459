// What bindings share to read their arguments.
#pragma once

#include <string>

#include "dtype.h"

namespace kv {

DType parse_dtype(const char* argument, const std::string& name);  // throws ValueError naming the argument

}  // namespace kv
