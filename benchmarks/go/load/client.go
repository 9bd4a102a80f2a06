package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"
)

// request is one question, whichever protocol carries it.
type request struct {
	text      string
	messages  []chatMessage // in place of text
	maxTokens int
}

// caller asks over one protocol; it notes times and returns what it has read.
type caller interface {
	call(ctx context.Context, target int, ask request, seen *observation) (string, error)
}

// observation is one request as its client saw it.
type observation struct {
	began        time.Time
	first        time.Duration // to the first token; 0: none came
	held         time.Duration // the replica's part of it
	tokens       []time.Time
	promptTokens int
	cachedTokens int
	replica      string
}

type clientFlags struct {
	protocol                                  string
	targets                                   []string
	streams, connections                      int
	tokens, promptBytes                       int
	seconds, warmUp, ramp, rate, limit, pause float64
	seed                                      uint64
	plan                                      string
	cut                                       bool
}

func runClient(arguments []string) {
	var f clientFlags
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	targets := flags.String("targets", "", "HOST:PORT of each, by commas; requests go round")
	flags.StringVar(&f.protocol, "protocol", "grpc", "grpc or http")
	flags.IntVar(&f.streams, "streams", 0, "closed loops: so many requests are open")
	flags.Float64Var(&f.rate, "rate", 0, "open loop: requests per second, at random moments")
	flags.StringVar(&f.plan, "plan", "", "conversations to play, a JSON file")
	flags.IntVar(&f.connections, "connections", 4, "gRPC connections per target")
	flags.IntVar(&f.tokens, "tokens", 16, "of each answer")
	flags.IntVar(&f.promptBytes, "prompt-bytes", 256, "of each prompt")
	flags.Float64Var(&f.seconds, "seconds", 10, "measured, after the warm-up")
	flags.Float64Var(&f.warmUp, "warm-up", 2, "seconds that do not count")
	flags.Float64Var(&f.ramp, "ramp", 1, "seconds over which closed loops begin")
	flags.Float64Var(&f.limit, "limit", 120, "seconds after which a request is an error")
	flags.Float64Var(&f.pause, "pause", 0, "seconds between a closed loop's requests, on average")
	flags.BoolVar(&f.cut, "cut", false, "leave open requests at the end, in place of waiting for theirs")
	flags.Uint64Var(&f.seed, "seed", 1, "of all that is random")
	flags.Parse(arguments)
	f.targets = strings.Split(*targets, ",")
	if *targets == "" {
		fail(fmt.Errorf("-targets: whom to ask?"))
	}
	c, err := newCaller(f)
	if err != nil {
		fail(err)
	}
	begin := time.Now()
	r := newRecord(begin.Add(seconds(f.warmUp)), begin.Add(seconds(f.warmUp+f.seconds)))
	switch {
	case f.plan != "":
		err = playPlan(f, c, r, begin)
	case f.streams > 0:
		runClosed(f, c, r)
	case f.rate > 0:
		runOpen(f, c, r, begin)
	default:
		err = fmt.Errorf("one of -streams, -rate and -plan is needed")
	}
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(r.report()); err != nil {
		fail(err)
	}
}

func newCaller(f clientFlags) (caller, error) {
	switch f.protocol {
	case "grpc":
		return newGRPCCaller(f.targets, f.connections)
	case "http":
		return newHTTPCaller(f.targets), nil
	}
	return nil, fmt.Errorf("-protocol: %q is neither grpc nor http", f.protocol)
}

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

// ask makes one request and books it.
func ask(f clientFlags, c caller, r *record, target int, what request) (string, error) {
	seen := &observation{began: time.Now(), tokens: make([]time.Time, 0, what.maxTokens)}
	end := seen.began.Add(seconds(f.limit))
	if f.cut && r.until.Before(end) {
		end = r.until
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	text, err := c.call(ctx, target, what, seen)
	if f.cut && err != nil && !time.Now().Before(r.until) {
		r.noteCut(seen)
		return text, err
	}
	if err == nil && len(seen.tokens) != what.maxTokens {
		err = fmt.Errorf("short: %d tokens of %d", len(seen.tokens), what.maxTokens)
	}
	r.note(seen, err)
	return text, err
}

// prompt makes a text that begins like no other.
func prompt(random *rand.Rand, size int) string {
	var text strings.Builder
	for text.Len() < size {
		fmt.Fprintf(&text, "%016x ", random.Uint64())
	}
	return text.String()[:size]
}

func runClosed(f clientFlags, c caller, r *record) {
	var group sync.WaitGroup
	for i := range f.streams {
		group.Go(func() {
			random := rand.New(rand.NewPCG(f.seed, uint64(i)))
			time.Sleep(seconds(f.ramp * float64(i) / float64(f.streams)))
			for n := i; time.Now().Before(r.until); n++ {
				_, err := ask(f, c, r, n, request{text: prompt(random, f.promptBytes), maxTokens: f.tokens})
				if err != nil {
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(seconds(2 * f.pause * random.Float64()))
			}
		})
	}
	group.Wait()
}

func runOpen(f clientFlags, c caller, r *record, begin time.Time) {
	var group sync.WaitGroup
	random := rand.New(rand.NewPCG(f.seed, 0))
	at := begin
	for n := 0; ; n++ {
		at = at.Add(seconds(random.ExpFloat64() / f.rate))
		if at.After(r.until) {
			break
		}
		what := request{text: prompt(random, f.promptBytes), maxTokens: f.tokens}
		time.Sleep(time.Until(at))
		group.Go(func() { ask(f, c, r, n, what) })
	}
	group.Wait()
}

// conversation is one of a plan: a system prompt, then questions that resend all that was said.
type conversation struct {
	At     float64 `json:"at"`
	System string  `json:"system"`
	Turns  []struct {
		User      string  `json:"user"`
		MaxTokens int     `json:"max_tokens"`
		Think     float64 `json:"think"` // seconds, after the answer
	} `json:"turns"`
}

func playPlan(f clientFlags, c caller, r *record, begin time.Time) error {
	data, err := os.ReadFile(f.plan)
	if err != nil {
		return err
	}
	var plan []conversation
	if err := json.Unmarshal(data, &plan); err != nil {
		return fmt.Errorf("%s: %w", f.plan, err)
	}
	var group sync.WaitGroup
	for number, each := range plan {
		group.Go(func() {
			time.Sleep(time.Until(begin.Add(seconds(each.At))))
			messages := []chatMessage{{"system", each.System}}
			for turn, said := range each.Turns {
				if time.Now().After(r.until) {
					return
				}
				messages = append(messages, chatMessage{"user", said.User})
				what := request{messages: messages, maxTokens: said.MaxTokens}
				answer, err := ask(f, c, r, number+turn, what)
				if err != nil {
					return
				}
				messages = append(messages, chatMessage{"assistant", answer})
				time.Sleep(seconds(said.Think))
			}
		})
	}
	group.Wait()
	return nil
}
