// What Python may ask about instruction sets.
#pragma once

#include <string>
#include <vector>

namespace kv {

std::vector<std::string> available_isas();  // worst first
void set_isa(const std::string& name);      // for tests and benchmarks; throws std::invalid_argument

}  // namespace kv
