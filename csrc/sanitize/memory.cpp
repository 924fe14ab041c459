// Does AddressSanitizer see on the kernels what it should? `memory clean` copies and checksums ranges of every length
// and place up to a few cache lines, and has to end with 0 and without a report; `memory wrong` reads one byte behind the
// end of a range and has to be reported.
#include <cstring>
#include <vector>

#include "../block_copy.h"
#include "../checksum.h"

using Bytes = std::vector<uint8_t>;

int main(int, char** arguments) {
  const auto& copy = kv::portable::block_copy_kernels;
  const auto& checksum = kv::portable::checksum_kernels;
  if (!std::strcmp(arguments[1], "wrong")) {
    const Bytes data(1000, 1);
    return checksum.read(0, data.data(), 1001) == 0;
  }
  const int lengths[] = {1, 63, 64, 65, 500, 1023, 4096, 5001};
  for (int bytes : lengths)
    for (int shift = 0; shift < 64; shift += 7) {
      Bytes in(bytes + shift), out(bytes + shift), summed(bytes + shift);  // exactly as long as what is touched
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(31 * i + shift);
      copy.stream(out.data() + shift, in.data() + shift, bytes);
      const uint64_t read = checksum.read(0, in.data() + shift, bytes);
      const uint64_t copied = checksum.copy(0, summed.data() + shift, in.data() + shift, bytes);
      const bool is_equal = !std::memcmp(out.data() + shift, in.data() + shift, bytes) &&
                            !std::memcmp(summed.data() + shift, in.data() + shift, bytes);
      if (!is_equal || read != copied) return 1;
    }
  return 0;
}
