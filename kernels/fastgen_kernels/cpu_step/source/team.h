// Threads that share out the units of a job's phases.
//
// Each thread has a share of a phase's units, one after another, so that it can fetch ahead what the
// next one reads; when it has done them it takes the last of others. A phase ends when its units are
// done, not when all threads have arrived: one that the machine keeps from running holds nobody up
// unless it is in the middle of a unit. Threads wait by spinning for a moment, then they sleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace fastgen {

class Job {
 public:
  virtual ~Job() = default;
  // Does one unit of a phase; the units of a phase are independent of one another.
  virtual void work(int phase, int unit, int thread) = 0;
};

// A thread's share of `units` units: [first(t), first(t + 1)); the first threads have one more where
// they do not come out even.
struct Shares {
  int units, threads;

  int first(int thread) const {
    return units / threads * thread + std::min(thread, units % threads);
  }
};

class Team {
 public:
  // threads: that compute, the caller's among them; the others start with the first job. Jobs have
  // up to most_phases phases.
  Team(int threads, int most_phases);
  ~Team();

  int threads() const { return threads_; }

  // Does phase after phase; units: how many each has. One caller at a time.
  void run(Job& job, const std::vector<int>& units);

 private:
  // open: the job's number, and the units of a thread's share that nobody has taken (see `packed`).
  struct alignas(128) Share {
    std::atomic<uint64_t> open{0};
  };
  // left: units that are not done.
  struct alignas(128) Phase {
    std::atomic<uint32_t> left{0};
  };

  void start();
  void forget();
  void help(int thread);
  void take_part(uint32_t number, int thread);
  int take(int phase, uint32_t number, int thread);
  static int take_from(Share& share, uint32_t number, bool own);
  void wait_while(std::atomic<uint32_t>& word, uint32_t value);
  void wake(std::atomic<uint32_t>& word);

  const int threads_;
  std::vector<std::thread> others_;
  pid_t process_ = 0;
  std::vector<Phase> phases_;
  std::vector<Share> shares_;  // [phases, threads]
  std::atomic<int> num_phases_{0};
  std::atomic<Job*> job_{nullptr};
  alignas(128) std::atomic<uint32_t> number_{0};
  alignas(128) std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> ending_{false};
};

}  // namespace fastgen
