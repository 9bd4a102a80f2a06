// A decoder's forward pass over a ragged batch (Vaswani et al., 2017, section 3).
#pragma once

#include "attention.h"
#include "linear.h"
#include "memory.h"
#include "norm.h"
#include "team.h"

namespace fastgen {

// What the caller keeps alive. Norms, biases and tables are float32, padded with zeros to PANEL.
struct LayerWeights {
  NormWeights attention_norm;
  Linear qkv;
  const float* query_norm;
  const float* key_norm;
  Linear output;
  NormWeights feed_forward_norm;
  Linear up;
  Linear down;
};

// embedding: [VOCABULARY, HIDDEN]; null: the rows are in lm_head. positions: [most, HIDDEN], or
// null. cos, sin: [most, ROTATED / 2].
struct Weights {
  const Weight* embedding;
  const float* positions;
  const LayerWeights* layers;
  NormWeights norm;
  Linear lm_head;
  const float* cos;
  const float* sin;
};

class Step : public Job {
 public:
  Step(const Weights& weights, int threads);

  // Writes keys and values into the batch's cache, and normalised hidden states into batch.hidden.
  // Throws std::bad_alloc before it has written anything.
  void forward(const Batch& batch);

  // logits: [rows, VOCABULARY] of hidden states [rows, HIDDEN].
  void lm_head(const float* hidden, int rows, float* logits);

  void work(int phase, int unit, int thread) override;

 private:
  enum Stage { NORM, QKV, CACHE, ATTEND, OUTPUT, FEED_FORWARD_NORM, UP, DOWN, STAGES };

  struct Token {
    int chunk;
    bool ends;  // its chunk
    int64_t position;
  };

  struct Units {
    int each, total;
    int count() const { return (total + each - 1) / each; }
    int first(int unit) const { return unit * each; }
    int last(int unit) const { return std::min(total, (unit + 1) * each); }
  };

  void reserve();
  Units rows(int total) const;
  Units panels(int outputs) const;
  int units(Stage stage) const;
  void work(Stage stage, int layer, int unit, int thread);

  void embed(int row);
  void norm(int layer, int row);
  void feed_forward_norm(int layer, int row);
  void cache_row(int layer, int row);
  void finish(int row);
  template <int INPUTS, int STRIDE>
  void add_to_residual(const Act* x, const Linear& linear, Units units, int unit);
  void up(const LayerWeights& layer, int unit);

  const Weights weights_;
  Team team_;
  Batch batch_;
  std::vector<Item> items_;
  std::vector<Token> tokens_;
  Buffer<float> residual_, qkv_;
  Buffer<Act> x_, second_x_, attended_, inner_;
  std::vector<std::unique_ptr<AttentionState>> states_;
  const float* head_input_ = nullptr;
  float* logits_ = nullptr;
  int head_rows_ = 0;
  bool is_head_ = false;
};

}  // namespace fastgen
