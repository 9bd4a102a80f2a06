package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// openAIRequest is what the fake heeds of a request; it always streams.
type openAIRequest struct {
	Prompt    string        `json:"prompt,omitempty"`
	Messages  []chatMessage `json:"messages,omitempty"`
	MaxTokens int           `json:"max_tokens"`
	Stream    bool          `json:"stream"`
}

// openAIChunk is an event of a stream: text of either API, and the usage in the last one.
type openAIChunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// render is the fake's chat template: a conversation's next turn begins with all of this one.
func render(messages []chatMessage) []byte {
	var text []byte
	for _, each := range messages {
		text = fmt.Appendf(text, "<%s>%s\n", each.Role, each.Content)
	}
	return append(text, "<assistant>"...)
}

func (r *replica) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", r.complete)
	mux.HandleFunc("POST /v1/completions", r.complete)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		io.WriteString(w, `{"object":"list","data":[{"id":"fake","object":"model"}]}`)
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if r.engine.isDraining() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	return mux
}

func (e *engine) isDraining() bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.draining
}

func (r *replica) complete(w http.ResponseWriter, request *http.Request) {
	came := time.Now()
	var body openAIRequest
	if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	text, isChat := []byte(body.Prompt), body.Messages != nil
	if isChat {
		text = render(body.Messages)
	}
	if body.MaxTokens == 0 {
		body.MaxTokens = defaultTokens
	}
	s, err := r.engine.submit(text, body.MaxTokens)
	if err == errDraining {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	} else if err != nil {
		refuse(w, http.StatusTooManyRequests, err)
		return
	}
	defer r.engine.leave(s)
	flusher := w.(http.Flusher)
	for {
		select {
		case <-request.Context().Done():
			return
		case number, open := <-s.tokens:
			if !open {
				w.Write(ending(s))
				return
			}
			if number == 0 {
				header := w.Header()
				header.Set("content-type", "text/event-stream")
				header.Set(replicaHeader, r.name)
				header.Set(requestHeader, request.Header.Get(requestHeader))
				header.Set(promptHeader, strconv.Itoa(s.promptTokens))
				header.Set(heldHeader, strconv.FormatInt(time.Since(came).Microseconds(), 10))
			}
			w.Write(event(s, number, isChat))
			flusher.Flush()
		}
	}
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("content-type", "application/json")
	w.Header().Set("retry-after", "1")
	w.WriteHeader(code)
	body := map[string]any{"error": map[string]any{"message": err.Error(), "type": "server_error"}}
	json.NewEncoder(w).Encode(body)
}

func event(s *stream, number int, isChat bool) []byte {
	word := s.words(number, number+1)
	if isChat {
		return fmt.Appendf(nil, "data: {\"object\":\"chat.completion.chunk\",\"model\":\"fake\","+
			"\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"}}]}\n\n", word)
	}
	return fmt.Appendf(nil, "data: {\"object\":\"text_completion\",\"model\":\"fake\","+
		"\"choices\":[{\"index\":0,\"text\":\"%s\"}]}\n\n", word)
}

func ending(s *stream) []byte {
	return fmt.Appendf(nil, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,"+
		"\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\n"+
		"data: [DONE]\n\n", s.promptTokens, s.maxTokens, s.cachedTokens)
}
