/* If preloaded (LD_PRELOAD), this library shifts a program's wall clock by the milliseconds in the first eight bytes
   of a file: the file in TICKFLEET_TEST_CLOCK, or `clock` in the working folder. If the next eight bytes are not zero,
   the clock stands still at this time (ms since 1970) instead. Writing to the file moves the clock of a running program.
   CLOCK_MONOTONIC is unaffected. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 2 * sizeof(int64_t) };
static const volatile int64_t *ahead_ms;

__attribute__((constructor)) static void open_the_file(void) {
  const char *named = getenv("TICKFLEET_TEST_CLOCK");
  int file = open(named ? named : "clock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (ftruncate(file, SIZE) == 0) {
    void *found = mmap(0, SIZE, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead_ms = found;
  }
  close(file);
}

/* A direct system call: depends on no other library, which might not be initialized yet, and allocates no memory. */
int clock_gettime(clockid_t clock, struct timespec *at) {
  long failed = syscall(SYS_clock_gettime, clock, at);
  if (failed == 0 && ahead_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t stopped_ms = ahead_ms[1], nanos = at->tv_nsec + *ahead_ms % 1000 * 1000000;
    at->tv_sec += *ahead_ms / 1000 + (nanos >= 1000000000) - (nanos < 0);
    at->tv_nsec = (nanos + 1000000000) % 1000000000;
    if (stopped_ms) {
      at->tv_sec = stopped_ms / 1000;
      at->tv_nsec = stopped_ms % 1000 * 1000000;
    }
  }
  return (int)failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
