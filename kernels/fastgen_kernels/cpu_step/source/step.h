// A decoder's forward pass over a ragged batch (Vaswani et al., 2017, section 3).
#pragma once

#include "attention.h"
#include "feed_forward.h"
#include "linear.h"
#include "memory.h"
#include "mixture.h"
#include "norm.h"
#include "team.h"

namespace fastgen {

constexpr int HIDDEN_STRIDE = round_up(HIDDEN, PANEL);
constexpr int INNER_STRIDE = round_up(INNER, PANEL);
constexpr int QKV_OUTPUTS = (HEADS + 2 * KV_HEADS) * HEAD_SIZE;
constexpr int QKV_STRIDE = round_up(QKV_OUTPUTS, PANEL);
constexpr int ATTENDED = HEADS * HEAD_SIZE;
constexpr bool IS_PARALLEL =
    ARRANGEMENT == Arrangement::PARALLEL || ARRANGEMENT == Arrangement::PARALLEL_NORMS;

// What the caller keeps alive. Norms, biases and tables are float32, padded with zeros to PANEL.
// experts: EXPERTS of them, in place of up and down; null in layers without a mixture.
struct LayerWeights {
  NormWeights attention_norm;
  Linear<LayerWeight> qkv;
  const float* query_norm;
  const float* key_norm;
  Linear<LayerWeight> output;
  NormWeights feed_forward_norm;
  Linear<LayerWeight> up;
  Linear<LayerWeight> down;
  Linear<Weight> router;
  const Expert* experts;

  bool is_mixture() const { return EXPERTS > 0 && experts; }
};

// embedding: [VOCABULARY, HIDDEN]; null: the rows are in lm_head, which is no int8 then. positions:
// [most, HIDDEN], or null. cos, sin: [most, ROTATED / 2].
struct Weights {
  const Weight* embedding;
  const float* positions;
  const LayerWeights* layers;
  NormWeights norm;
  Linear<LayerWeight> lm_head;
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
  enum Stage {
    EMBED,
    NORM,
    QKV,
    CACHE,
    ATTEND,
    GATHER,
    OUTPUT,
    FEED_FORWARD_NORM,
    UP,
    DOWN,
    ROUTE,  // to COMBINE: in place of UP and DOWN
    ARRANGE,
    SPREAD,
    EXPERT_UP,
    EXPERT_DOWN,
    COMBINE,
    FINISH,
    STAGES
  };

  struct Phase {
    Stage stage;
    int layer;
  };

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

  void divide();
  void reserve();
  Units rows(int total) const;
  Units panels(int outputs) const;
  const std::vector<Item>& items(int layer) const;
  int num_rows(Stage stage, int layer) const;
  int units(Stage stage, int layer) const;
  static bool is_of_mixture(Stage stage) { return ROUTE <= stage && stage <= COMBINE; }
  int mixture_units(Stage stage, int rows) const;
  void work(Stage stage, int layer, int unit, int thread);
  void mix(Stage stage, const LayerWeights& layer, int rows, int unit);
  void each_row(Stage stage, int layer, int row);
  LayerCache cache(int layer) const;
  // What the feed-forward part reads.
  const Act* fed() const {
    return ARRANGEMENT == Arrangement::PARALLEL_NORMS ? second_x_.data() : x_.data();
  }

  void embed(int row);
  void norm(int layer, int row);
  void feed_forward_norm(int layer, int row);
  void qkv(const LayerWeights& layer, int unit);
  void cache_row(int layer, int row);
  void gather();
  void finish(int row);
  template <int INPUTS, int STRIDE>
  void add_to_residual(const Act* x, int rows, const Linear<LayerWeight>& linear, int unit);

  const Weights weights_;
  Team team_;
  Batch batch_;
  std::vector<Phase> phases_;
  // After the last layer's attention the rows are those that are wanted, ascending, each once.
  std::vector<int64_t> all_rows_, wanted_rows_;
  std::vector<Item> items_, last_items_;
  std::vector<Token> tokens_;
  Buffer<float> residual_, qkv_;
  Buffer<Act> x_, second_x_, attended_, inner_;
  Mixture<EXPERTS, CHOSEN_EXPERTS, EXPERT_INNER, RENORMALISE> mixture_;
  std::vector<std::unique_ptr<AttentionState>> states_;
  const float* head_input_ = nullptr;
  float* logits_ = nullptr;
  int head_rows_ = 0;
  bool is_head_ = false;
};

}  // namespace fastgen
