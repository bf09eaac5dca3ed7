/* If preloaded (LD_PRELOAD), this library stops a server's wall clock at the milliseconds in the first eight bytes of
   the file in STOPPED_CLOCK. Writing to the file sets the clock of a running server. CLOCK_MONOTONIC is unaffected. The
   server is killed when the thread that started it ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *now_ms;

__attribute__((constructor)) static void open_the_file(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char *named = getenv("STOPPED_CLOCK");
  int file = named ? open(named, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *found = mmap(0, sizeof *now_ms, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) now_ms = found;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  if (!now_ms || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) {
    return (int)syscall(SYS_clock_gettime, clock, at);
  }
  int64_t ms = *now_ms;
  at->tv_sec = ms / 1000;
  at->tv_nsec = ms % 1000 * 1000000;
  return 0;
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
