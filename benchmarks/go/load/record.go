package main

import (
	"slices"
	"sync"
	"syscall"
	"time"
)

// record is what all requests of a run told. Requests that begin from `from` to `until` count, and
// tokens that come then, whichever request they are of; errors count whenever they happen.
type record struct {
	from, until time.Time

	mutex                      sync.Mutex
	requests, all, tokens      int
	promptTokens, cachedTokens int
	failed                     int
	errors                     map[string]int
	ttfts, helds, added, gaps  []float64 // milliseconds
	perReplica                 map[string]int
}

func newRecord(from, until time.Time) *record {
	return &record{from: from, until: until, errors: map[string]int{}, perReplica: map[string]int{}}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// noteCut books a request that its client left because the time was up: it began, and no more.
func (r *record) noteCut(seen *observation) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all++
	r.noteTokens(seen)
	r.noteFirst(seen)
}

func (r *record) note(seen *observation, err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all++
	r.noteTokens(seen)
	if err != nil {
		r.failed++
		if len(r.errors) < 20 || r.errors[err.Error()] > 0 {
			r.errors[err.Error()]++
		}
		return
	}
	r.noteFirst(seen)
}

func (r *record) noteTokens(seen *observation) {
	for i, at := range seen.tokens {
		if at.Before(r.from) || at.After(r.until) {
			continue
		}
		r.tokens++
		if i > 0 {
			r.gaps = append(r.gaps, milliseconds(at.Sub(seen.tokens[i-1])))
		}
	}
}

// noteFirst books a request that has begun to be answered in the measured time.
func (r *record) noteFirst(seen *observation) {
	if seen.began.Before(r.from) || seen.began.After(r.until) || len(seen.tokens) == 0 {
		return
	}
	r.requests++
	r.promptTokens += seen.promptTokens
	r.cachedTokens += seen.cachedTokens
	r.perReplica[seen.replica]++
	r.ttfts = append(r.ttfts, milliseconds(seen.first))
	r.helds = append(r.helds, milliseconds(seen.held))
	r.added = append(r.added, milliseconds(seen.first-seen.held))
}

// spread is a distribution, milliseconds.
type spread struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	at := func(share float64) float64 { return values[int(share*float64(len(values)-1)+0.5)] }
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return spread{at(0.5), at(0.9), at(0.99), values[len(values)-1], sum / float64(len(values))}
}

// report is what the client prints. all counts the requests outside the measured time, too.
type report struct {
	Requests     int            `json:"requests"`
	All          int            `json:"all"`
	Failed       int            `json:"failed"`
	Errors       map[string]int `json:"errors"`
	Seconds      float64        `json:"seconds"`
	Tokens       int            `json:"tokens"`
	PromptTokens int            `json:"prompt_tokens"`
	CachedTokens int            `json:"cached_tokens"`
	TTFT         spread         `json:"ttft_ms"`
	Held         spread         `json:"held_ms"`
	Way          spread         `json:"way_ms"` // to the first token, less what the replica took
	Gap          spread         `json:"gap_ms"`
	PerReplica   map[string]int `json:"per_replica"`
	CPUSeconds   float64        `json:"cpu_seconds"`
}

func (r *record) report() report {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return report{
		Requests: r.requests, All: r.all, Failed: r.failed, Errors: r.errors,
		Seconds: r.until.Sub(r.from).Seconds(), Tokens: r.tokens,
		PromptTokens: r.promptTokens, CachedTokens: r.cachedTokens,
		TTFT: spreadOf(r.ttfts), Held: spreadOf(r.helds), Way: spreadOf(r.added), Gap: spreadOf(r.gaps),
		PerReplica: r.perReplica, CPUSeconds: cpuSeconds(),
	}
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
