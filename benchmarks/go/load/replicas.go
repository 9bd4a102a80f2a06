package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "fastgen.dev/load/fastgenv1"
)

// What replicas say of themselves; names of fastgen_api.names.Header.
const (
	replicaHeader = "x-fastgen-replica"
	promptHeader  = "x-fastgen-prompt-tokens"
	requestHeader = "x-request-id"
	// heldHeader is the benchmark's own: microseconds from the request's arrival to its first token.
	heldHeader = "x-load-held-us"
)

type replica struct {
	pb.UnimplementedInferenceServiceServer
	name   string
	engine *engine
	http   net.Listener
	grpc   net.Listener
	server *grpc.Server
	health *health.Server
}

func serveReplicas(arguments []string) {
	flags := flag.NewFlagSet("replicas", flag.ExitOnError)
	var m model
	flags.Float64Var(&m.base, "base-seconds", 0.02, "of each step")
	flags.Float64Var(&m.perToken, "seconds-per-token", 0, "of a step's tokens")
	flags.Float64Var(&m.perAttended, "seconds-per-attended", 0, "of pairs of tokens")
	flags.Float64Var(&m.perRequest, "seconds-per-request", 0, "of a step's requests")
	flags.IntVar(&m.budget, "budget", 2048, "tokens of a step")
	flags.IntVar(&m.maxConcurrent, "max-concurrent", 256, "requests; more are refused")
	flags.IntVar(&m.blockTokens, "block-tokens", 64, "tokens of a block")
	flags.IntVar(&m.blocks, "blocks", 4096, "blocks that the prefix cache holds")
	count := flags.Int("replicas", 1, "how many")
	host := flags.String("host", "127.0.0.1", "where they listen")
	ports := flags.String("ports", "", "HTTP:GRPC of each, by commas; default: free ones")
	flags.Parse(arguments)

	pairs := strings.Split(*ports, ",")
	if *ports == "" {
		pairs = make([]string, *count)
		for i := range pairs {
			pairs[i] = "0:0"
		}
	}
	replicas := make([]*replica, 0, len(pairs))
	addresses := make([]string, 0, len(pairs))
	for i, pair := range pairs {
		r, err := listen(fmt.Sprintf("fake-%d", i), *host, pair, m)
		if err != nil {
			fail(err)
		}
		go http.Serve(r.http, r.routes())
		go r.server.Serve(r.grpc)
		replicas = append(replicas, r)
		addresses = append(addresses, fmt.Sprintf("%s:%d:%d", *host, port(r.http), port(r.grpc)))
	}
	json.NewEncoder(os.Stdout).Encode(addresses)
	waitAndDrain(replicas)
}

func listen(name, host, pair string, m model) (*replica, error) {
	httpPort, grpcPort, found := strings.Cut(pair, ":")
	if !found {
		return nil, fmt.Errorf("-ports: %q is not HTTP:GRPC", pair)
	}
	r := &replica{name: name, engine: newEngine(m), server: grpc.NewServer(), health: health.NewServer()}
	var err error
	if r.http, err = net.Listen("tcp", net.JoinHostPort(host, httpPort)); err != nil {
		return nil, err
	}
	if r.grpc, err = net.Listen("tcp", net.JoinHostPort(host, grpcPort)); err != nil {
		return nil, err
	}
	pb.RegisterInferenceServiceServer(r.server, r)
	healthpb.RegisterHealthServer(r.server, r.health)
	return r, nil
}

func port(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

// waitAndDrain ends the process a while after SIGTERM, when no request is open.
func waitAndDrain(replicas []*replica) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	for _, r := range replicas {
		r.engine.drain()
		r.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	}
	for _, r := range replicas {
		for !r.engine.idle() {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, r := range replicas {
		stopSoon := time.AfterFunc(time.Second, r.server.Stop)
		r.server.GracefulStop()
		stopSoon.Stop()
	}
}
