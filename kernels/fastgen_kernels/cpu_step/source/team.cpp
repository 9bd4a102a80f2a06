#include "team.h"

#include <chrono>
#include <climits>
#include <stdexcept>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fastgen {
namespace {

constexpr int NONE = -1, STALE = -2;
constexpr std::chrono::microseconds SPIN{50};
constexpr int LOOKS = 32;  // between two looks at the clock

// Bits of the first unit of what is open, and of the one behind it; a job's number has the rest.
constexpr int BITS = 22;
constexpr uint64_t MASK = (uint64_t(1) << BITS) - 1;

uint64_t packed(uint32_t number, uint64_t first, uint64_t last) {
  return uint64_t(number) << 2 * BITS | first << BITS | last;
}

bool is_of(uint64_t open, uint32_t number) {
  return open >> 2 * BITS == packed(number, 0, 0) >> 2 * BITS;
}

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

Team::Team(int threads, int most_phases)
    : threads_(threads), phases_(most_phases), shares_(size_t(most_phases) * threads) {}

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
    if (uint64_t(units[i]) > MASK) throw std::length_error("a phase has too many units");
    phases_[i].left = uint32_t(units[i]);
    const Shares shares{units[i], threads_};
    for (int thread = 0; thread < threads_; ++thread)
      shares_[i * threads_ + thread].open =
          packed(number, shares.first(thread), shares.first(thread + 1));
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
    while ((unit = take(i, number, thread)) >= 0) {
      job_.load()->work(i, unit, thread);
      if (--phase.left == 0) wake(phase.left);
    }
    if (unit == STALE) return;
    while (const uint32_t left = phase.left) wait_while(phase.left, left);
  }
}

int Team::take(int phase, uint32_t number, int thread) {
  for (int i = 0; i < threads_; ++i) {
    Share& share = shares_[size_t(phase) * threads_ + (thread + i) % threads_];
    const int unit = take_from(share, number, i == 0);
    if (unit != NONE) return unit;
  }
  return NONE;
}

// The first unit of an own share, the last of another's.
int Team::take_from(Share& share, uint32_t number, bool own) {
  uint64_t open = share.open.load();
  while (true) {
    if (!is_of(open, number)) return STALE;
    const uint64_t first = open >> BITS & MASK, last = open & MASK;
    if (first == last) return NONE;
    const uint64_t rest = own ? packed(number, first + 1, last) : packed(number, first, last - 1);
    if (share.open.compare_exchange_weak(open, rest)) return int(own ? first : last - 1);
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
