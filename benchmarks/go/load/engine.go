package main

import (
	"errors"
	"sync"
	"time"
)

var (
	errFull     = errors.New("the replica is full")
	errDraining = errors.New("the replica drains")
)

// model says how long a step takes, as the engine's fitted latency model does, and what fits.
type model struct {
	base, perToken, perAttended, perRequest float64 // seconds
	budget                                  int     // tokens of a step
	maxConcurrent                           int
	blockTokens, blocks                     int
}

// stream is one request. Its engine alone writes to it; tokens holds the number of each token made.
type stream struct {
	text         []byte
	promptTokens int
	cachedTokens int
	maxTokens    int
	owed         int // prompt tokens that are still to compute
	context      int
	made         int
	tokens       chan int
	gone         bool
}

// engine is one replica: a loop of steps that sleep for the time that their tokens would take.
type engine struct {
	model
	mutex    sync.Mutex
	wakeUp   *sync.Cond
	running  []*stream
	cache    *cache
	draining bool
	speed    meter
}

func newEngine(m model) *engine {
	e := &engine{model: m, cache: newCache(m.blocks)}
	e.wakeUp = sync.NewCond(&e.mutex)
	go e.loop()
	return e
}

// submit takes a request in, or says why not.
func (e *engine) submit(text []byte, maxTokens int) (*stream, error) {
	digests := chain(text, e.blockTokens)
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.draining {
		return nil, errDraining
	}
	if len(e.running) >= e.maxConcurrent {
		return nil, errFull
	}
	s := &stream{text: text, maxTokens: max(1, maxTokens)}
	s.promptTokens = max(1, len(text)/bytesPerToken)
	s.cachedTokens = min(e.cache.held(digests)*e.blockTokens, s.promptTokens-1)
	s.owed, s.context = s.promptTokens-s.cachedTokens, s.cachedTokens
	s.tokens = make(chan int, s.maxTokens) // never blocks the loop
	e.running = append(e.running, s)
	e.wakeUp.Signal()
	return s, nil
}

// leave takes off a request whose client has gone.
func (e *engine) leave(s *stream) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	s.gone = true
}

// drain refuses what is new; idle tells when the rest has ended.
func (e *engine) drain() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.draining = true
}

func (e *engine) idle() bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return len(e.running) == 0
}

func (e *engine) loop() {
	end := time.Time{}
	for {
		e.mutex.Lock()
		for e.sweep(); len(e.running) == 0; e.sweep() {
			e.wakeUp.Wait()
			end = time.Time{}
		}
		seconds, chunks := e.plan()
		e.mutex.Unlock()
		// From the last step's end on, so that a late timer makes no device slow; one step at most.
		step := time.Duration(seconds * float64(time.Second))
		if now := time.Now(); now.Sub(end) > step {
			end = now
		}
		end = end.Add(step)
		time.Sleep(time.Until(end))
		e.commit(chunks)
	}
}

// sweep forgets requests that have ended.
func (e *engine) sweep() {
	kept := e.running[:0]
	for _, s := range e.running {
		if !s.gone && s.made < s.maxTokens {
			kept = append(kept, s)
		}
	}
	clear(e.running[len(kept):])
	e.running = kept
}

type chunk struct {
	stream *stream
	tokens int
}

// plan gives each answer its next token and prompts the rest of the budget, first come first served.
func (e *engine) plan() (float64, []chunk) {
	left, attended, tokens := e.budget, 0, 0
	chunks := make([]chunk, 0, len(e.running))
	add := func(s *stream, n int) {
		chunks = append(chunks, chunk{s, n})
		left, tokens = left-n, tokens+n
		attended += n*s.context + n*(n+1)/2
	}
	for _, s := range e.running {
		if s.owed == 0 {
			add(s, 1)
		}
	}
	for _, s := range e.running {
		if s.owed > 0 && left > 0 {
			add(s, min(s.owed, left))
		}
	}
	seconds := e.base + e.perToken*float64(tokens) + e.perAttended*float64(attended)
	return seconds + e.perRequest*float64(len(chunks)), chunks
}

// commit hands the step's tokens on.
func (e *engine) commit(chunks []chunk) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for _, c := range chunks {
		s := c.stream
		s.context += c.tokens
		e.speed.add(c.tokens)
		if s.owed > 0 {
			if s.owed -= c.tokens; s.owed > 0 {
				continue
			}
			e.cache.keep(chain(s.text, e.blockTokens))
		}
		s.tokens <- s.made
		if s.made++; s.made == s.maxTokens {
			close(s.tokens)
			e.cache.keep(chain(append(s.text, s.words(0, s.made)...), e.blockTokens))
		}
	}
}

// words gives the text of tokens: bytesPerToken characters each, others for another prompt.
func (s *stream) words(from, to int) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz012345"
	seed := uint64(len(s.text))
	for _, c := range s.text[max(0, len(s.text)-64):] {
		seed = seed*1099511628211 ^ uint64(c)
	}
	text := make([]byte, 0, (to-from)*bytesPerToken)
	for i := from; i < to; i++ {
		mixed := (seed + uint64(i)) * 0x9E3779B97F4A7C15
		text = append(text, letters[mixed>>59], letters[mixed>>54&31], letters[mixed>>49&31], ' ')
	}
	return text
}

// meter counts what was computed over the last ten seconds.
type meter struct {
	counts [10]int
	second int64
}

func (m *meter) turn() {
	now := time.Now().Unix()
	if now-m.second > 10 {
		m.counts, m.second = [10]int{}, now
	}
	for ; m.second < now; m.second++ {
		m.counts[(m.second+1)%10] = 0
	}
}

func (m *meter) add(tokens int) {
	m.turn()
	m.counts[m.second%10] += tokens
}

func (m *meter) perSecond() float64 {
	m.turn()
	sum := 0
	for _, count := range m.counts {
		sum += count
	}
	return float64(sum) / 10
}
