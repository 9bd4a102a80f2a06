#include "team.h"

#include <chrono>
#include <climits>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fastgen {
namespace {

constexpr int NONE = -1, STALE = -2;
constexpr std::chrono::microseconds SPIN{50};
constexpr int LOOKS = 32;  // between two looks at the clock

uint64_t opened(uint32_t number, int units) { return uint64_t(number) << 32 | uint32_t(units); }

// Tells the core that this is a waiting loop.
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr,
                 0);
}

}  // namespace

Team::Team(int threads, int most_phases) : threads_(threads), phases_(most_phases) {}

Team::~Team() {
  if (process_ != getpid()) {
    forget();
    return;
  }
  ending_ = true;
  ++number_;
  wake(number_);
  for (auto& other : others_) other.join();
}

// Threads of the process that this one was forked from can be neither joined nor detached here.
void Team::forget() {
  if (!others_.empty()) new std::vector<std::thread>(std::move(others_));
  others_.clear();
}

void Team::start() {
  if (process_ == getpid()) return;
  forget();
  process_ = getpid();
  sleepers_ = 0;
  for (int thread = 1; thread < threads_; ++thread)
    others_.emplace_back([this, thread] { help(thread); });
}

void Team::run(Job& job, const std::vector<int>& units) {
  start();
  const uint32_t number = number_.load() + 1;
  job_ = &job;
  num_phases_ = int(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    phases_[i].left = uint32_t(units[i]);
    phases_[i].open = opened(number, units[i]);
  }
  number_ = number;
  wake(number_);
  take_part(number, 0);
}

void Team::help(int thread) {
  uint32_t number = 0;
  while (true) {
    wait_while(number_, number);
    if (ending_) return;
    number = number_;
    take_part(number, thread);
  }
}

// A thread that comes late may find its job ended and another begun: then it takes no unit.
void Team::take_part(uint32_t number, int thread) {
  for (int i = 0; i < num_phases_; ++i) {
    Phase& phase = phases_[i];
    int unit;
    while ((unit = take(phase, number)) >= 0) {
      job_.load()->work(i, unit, thread);
      if (--phase.left == 0) wake(phase.left);
    }
    if (unit == STALE) return;
    while (const uint32_t left = phase.left) wait_while(phase.left, left);
  }
}

int Team::take(Phase& phase, uint32_t number) {
  uint64_t open = phase.open.load();
  while (true) {
    if (uint32_t(open >> 32) != number) return STALE;
    if (uint32_t(open) == 0) return NONE;
    if (phase.open.compare_exchange_weak(open, open - 1)) return int(uint32_t(open)) - 1;
  }
}

void Team::wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  const auto end = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int look = 0; look < LOOKS; ++look) {
      if (word.load() != value) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  ++sleepers_;
  futex(word, FUTEX_WAIT_PRIVATE, value);
  --sleepers_;
}

void Team::wake(std::atomic<uint32_t>& word) {
  if (sleepers_.load()) futex(word, FUTEX_WAKE_PRIVATE, INT_MAX);
}

}  // namespace fastgen
