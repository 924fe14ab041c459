// Does ThreadSanitizer see on openmp.cpp what it should? `control race` adds up without a reduction and has to
// be reported, `control clean` uses every construct by the rules and has to end with 0 and without a report.
#include <omp.h>

#include <cstring>

int main(int, char** arguments) {
  constexpr int COUNT = 1000;
  if (!std::strcmp(arguments[1], "race")) {
    long total = 0;
#pragma omp parallel num_threads(4)
    total += omp_get_thread_num();
    return total < 0;
  }
  long fixed = 0, dynamic = 0, critical = 0, once = 0, seen[4] = {}, sum = 0;
#pragma omp parallel for num_threads(4) schedule(static) reduction(+ : fixed)
  for (int i = 0; i < COUNT; ++i) fixed += i;
#pragma omp parallel for num_threads(4) schedule(dynamic, 7) reduction(+ : dynamic)
  for (int i = COUNT - 1; i >= 0; --i) dynamic += i;
#pragma omp parallel num_threads(4)
  {
    seen[omp_get_thread_num()] = omp_get_num_threads();
#pragma omp barrier
#pragma omp single
    for (long each : seen) once += each;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < COUNT; ++i) {
#pragma omp critical
      critical += i;
    }
#pragma omp for schedule(dynamic, 3) reduction(+ : sum) nowait
    for (int i = 0; i < COUNT; ++i) sum += i;
  }
  const long expected = COUNT * (COUNT - 1L) / 2;
  return !(fixed == expected && dynamic == expected && critical == expected && sum == expected && once == 16);
}
