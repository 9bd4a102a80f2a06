package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "fastgen.dev/load/fastgenv1"
)

type grpcCaller struct{ stubs []pb.InferenceServiceClient }

func newGRPCCaller(targets []string, connections int) (*grpcCaller, error) {
	c := &grpcCaller{}
	for i := range connections * len(targets) {
		connection, err := grpc.NewClient("passthrough:///"+targets[i%len(targets)],
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			return nil, err
		}
		c.stubs = append(c.stubs, pb.NewInferenceServiceClient(connection))
	}
	return c, nil
}

func (c *grpcCaller) call(
	ctx context.Context, target int, ask request, seen *observation,
) (string, error) {
	maxTokens := uint32(ask.maxTokens)
	question := &pb.GenerateRequest{Stopping: &pb.Stopping{MaxTokens: &maxTokens, IgnoreEos: true}}
	if ask.messages == nil {
		question.Prompt = &pb.GenerateRequest_Text{Text: ask.text}
	} else {
		chat := &pb.Chat{}
		for _, each := range ask.messages {
			chat.Messages = append(chat.Messages, &pb.ChatMessage{Role: each.Role, Content: each.Content})
		}
		question.Prompt = &pb.GenerateRequest_Chat{Chat: chat}
	}
	answers, err := c.stubs[target%len(c.stubs)].Generate(ctx, question)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for {
		answer, err := answers.Recv()
		if err == io.EOF {
			return text.String(), nil
		} else if err != nil {
			return "", err
		}
		if len(seen.tokens) == 0 {
			head, _ := answers.Header()
			seen.begin(single(head, replicaHeader), single(head, heldHeader))
		}
		now := time.Now()
		for range answer.TokenIds {
			seen.tokens = append(seen.tokens, now)
		}
		text.WriteString(answer.Text)
		if usage := answer.Usage; usage != nil {
			seen.promptTokens, seen.cachedTokens = int(usage.PromptTokens), int(usage.CachedTokens)
		}
	}
}

func single(head metadata.MD, name string) string {
	if values := head.Get(name); len(values) == 1 {
		return values[0]
	}
	return ""
}

// begin notes the first token.
func (o *observation) begin(replica, heldMicroseconds string) {
	o.first, o.replica = time.Since(o.began), replica
	microseconds, _ := strconv.Atoi(heldMicroseconds)
	o.held = time.Duration(microseconds) * time.Microsecond
}

type httpCaller struct {
	client  *http.Client
	targets []string
}

func newHTTPCaller(targets []string) *httpCaller {
	transport := &http.Transport{MaxIdleConnsPerHost: 10_000, IdleConnTimeout: 2 * time.Second}
	return &httpCaller{&http.Client{Transport: transport}, targets}
}

func (c *httpCaller) call(
	ctx context.Context, target int, ask request, seen *observation,
) (string, error) {
	path := "/v1/completions"
	if ask.messages != nil {
		path = "/v1/chat/completions"
	}
	body, err := json.Marshal(openAIRequest{ask.text, ask.messages, ask.maxTokens, true})
	if err != nil {
		return "", err
	}
	url := "http://" + c.targets[target%len(c.targets)] + path
	// Without GetBody the client's library repeats nothing by itself.
	question, err := http.NewRequestWithContext(ctx, "POST", url, io.NopCloser(bytes.NewReader(body)))
	if err != nil {
		return "", err
	}
	question.ContentLength = int64(len(body))
	question.Header.Set("content-type", "application/json")
	answer, err := c.client.Do(question)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		return "", fmt.Errorf("HTTP %d: %s", answer.StatusCode, bytes.TrimSpace(said))
	}
	return readEvents(answer, seen)
}

func readEvents(answer *http.Response, seen *observation) (string, error) {
	var text strings.Builder
	lines := bufio.NewReader(answer.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return "", fmt.Errorf("the stream broke off: %w", err)
		}
		data, isEvent := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if !isEvent {
			continue
		}
		if string(data) == "[DONE]" {
			_, err := io.Copy(io.Discard, lines) // so that the connection can be used again
			return text.String(), err
		}
		if len(seen.tokens) == 0 {
			seen.begin(answer.Header.Get(replicaHeader), answer.Header.Get(heldHeader))
		}
		var event openAIChunk
		if err := json.Unmarshal(data, &event); err != nil {
			return "", err
		}
		for _, choice := range event.Choices {
			seen.tokens = append(seen.tokens, time.Now())
			text.WriteString(choice.Text + choice.Delta.Content)
		}
		if event.Usage != nil {
			seen.promptTokens = event.Usage.PromptTokens
			seen.cachedTokens = event.Usage.Details.CachedTokens
		}
	}
}
