/* A preloaded library that shifts the wall clock of its process by a number of seconds, which it reads
   from the file CLOCK_OFFSET_FILE each time the clock is read. It makes system calls directly: looking
   up the real functions would allocate memory, and the server's allocator reads the clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  static int file = -2;
  char text[32] = {0};
  if (file == -2) {
    const char *name = getenv("CLOCK_OFFSET_FILE");
    file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  }
  if (file < 0 || pread(file, text, sizeof text - 1, 0) <= 0) return 0;
  return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}
