package main

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "fastgen.dev/load/fastgenv1"
)

const defaultTokens = 16

func (r *replica) GetLoad(context.Context, *pb.GetLoadRequest) (*pb.GetLoadResponse, error) {
	e := r.engine
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.sweep()
	owed, used := 0, 0
	for _, s := range e.running {
		owed += s.owed
		used += (s.context + e.blockTokens - 1) / e.blockTokens
	}
	return &pb.GetLoadResponse{
		Model:                 "fake",
		RunningRequests:       uint32(len(e.running)),
		OwedTokens:            uint64(owed),
		MaxConcurrentRequests: uint32(e.maxConcurrent),
		TotalBlocks:           uint32(e.blocks),
		FreeBlocks:            uint32(max(1, e.blocks-used)),
		BlockSize:             uint32(e.blockTokens),
		TokensPerSecond:       e.speed.perSecond(),
		Draining:              e.draining,
	}, nil
}

func (r *replica) Generate(
	request *pb.GenerateRequest, answers grpc.ServerStreamingServer[pb.GenerateResponse],
) error {
	came := time.Now()
	maxTokens := defaultTokens
	if request.Stopping != nil && request.Stopping.MaxTokens != nil {
		maxTokens = int(*request.Stopping.MaxTokens)
	}
	s, err := r.engine.submit(promptOf(request), maxTokens)
	if err == errDraining {
		return status.Error(codes.Unavailable, err.Error())
	} else if err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	defer r.engine.leave(s)
	ids, _ := metadata.FromIncomingContext(answers.Context())
	id := request.RequestId
	if given := ids.Get(requestHeader); id == "" && len(given) > 0 {
		id = given[0]
	}
	for {
		select {
		case <-answers.Context().Done():
			return status.FromContextError(answers.Context().Err()).Err()
		case number, open := <-s.tokens:
			if !open {
				return nil
			}
			if number == 0 {
				held := strconv.FormatInt(time.Since(came).Microseconds(), 10)
				prompt := strconv.Itoa(s.promptTokens)
				answers.SendHeader(metadata.Pairs(
					replicaHeader, r.name, requestHeader, id, promptHeader, prompt, heldHeader, held))
			}
			if err := answers.Send(message(s, id, number)); err != nil {
				return err
			}
		}
	}
}

func message(s *stream, id string, number int) *pb.GenerateResponse {
	answer := &pb.GenerateResponse{
		RequestId: id,
		Text:      string(s.words(number, number+1)),
		TokenIds:  []uint32{uint32(number)},
	}
	if number == s.maxTokens-1 {
		answer.FinishReason = pb.FinishReason_FINISH_REASON_LENGTH
		answer.Usage = &pb.Usage{
			PromptTokens: uint32(s.promptTokens),
			OutputTokens: uint32(s.maxTokens),
			CachedTokens: uint32(s.cachedTokens),
		}
	}
	return answer
}

func promptOf(request *pb.GenerateRequest) []byte {
	switch prompt := request.Prompt.(type) {
	case *pb.GenerateRequest_TokenIds:
		var text []byte
		for _, id := range prompt.TokenIds.Ids {
			text = binary.LittleEndian.AppendUint32(text, id)
		}
		return text
	case *pb.GenerateRequest_Chat:
		var messages []chatMessage
		for _, each := range prompt.Chat.Messages {
			messages = append(messages, chatMessage{each.Role, each.Content})
		}
		return render(messages)
	default:
		return []byte(request.GetText())
	}
}
