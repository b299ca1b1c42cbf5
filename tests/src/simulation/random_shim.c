/* A preloaded library with which the random numbers of the system are the same in each run. Each thread gets the same ones, so
   this is for programs in which one thread needs them. */
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

static __thread uint64_t state = 1;

ssize_t getrandom(void *to, size_t length, unsigned int flags) {
  unsigned char *bytes = to;
  (void)flags;
  for (size_t i = 0; i < length; i++) {
    /* splitmix64: https://prng.di.unimi.it/splitmix64.c */
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    bytes[i] = (unsigned char)(z ^ (z >> 31));
  }
  return (ssize_t)length;
}
