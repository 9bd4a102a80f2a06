// Memory for activations.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace fastgen {

// Grows, and then forgets what it held; zero at first.
template <class Element>
class Buffer {
 public:
  Element* data() const { return data_.get(); }

  void reserve(size_t count) {
    if (count <= count_) return;
    constexpr size_t LINE = 64;
    const size_t bytes = (count * sizeof(Element) + LINE - 1) / LINE * LINE;
    data_.reset();
    count_ = 0;
    data_.reset(static_cast<Element*>(std::aligned_alloc(LINE, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
    count_ = count;
  }

 private:
  struct Free {
    void operator()(Element* data) const { std::free(data); }
  };
  std::unique_ptr<Element, Free> data_;
  size_t count_ = 0;
};

}  // namespace fastgen
