package main

import (
	"container/list"
	"encoding/binary"
	"hash/fnv"
)

// bytesPerToken is what stands in for a tokenizer: so many bytes of text are a token.
const bytesPerToken = 4

// chain gives the digests of the full blocks of a text, each of its block and of all before it.
func chain(text []byte, blockTokens int) []uint64 {
	size := blockTokens * bytesPerToken
	digests := make([]uint64, 0, len(text)/size)
	parent := uint64(0)
	for ; len(text) >= size; text = text[size:] {
		hash := fnv.New64a()
		var head [8]byte
		binary.LittleEndian.PutUint64(head[:], parent)
		hash.Write(head[:])
		hash.Write(text[:size])
		parent = hash.Sum64()
		digests = append(digests, parent)
	}
	return digests
}

// cache knows which blocks a replica holds; the least recently used go first.
type cache struct {
	capacity int
	order    *list.List
	places   map[uint64]*list.Element
}

func newCache(capacity int) *cache {
	return &cache{capacity, list.New(), map[uint64]*list.Element{}}
}

// held tells how many of the first blocks are there.
func (c *cache) held(digests []uint64) int {
	for i, digest := range digests {
		place, there := c.places[digest]
		if !there {
			return i
		}
		c.order.MoveToFront(place)
	}
	return len(digests)
}

// keep puts blocks in, the last one first, so that a chain loses its end before its beginning.
func (c *cache) keep(digests []uint64) {
	for i := len(digests) - 1; i >= 0; i-- {
		if place, there := c.places[digests[i]]; there {
			c.order.MoveToFront(place)
		} else {
			c.places[digests[i]] = c.order.PushFront(digests[i])
		}
	}
	for c.order.Len() > c.capacity {
		last := c.order.Back()
		delete(c.places, last.Value.(uint64))
		c.order.Remove(last)
	}
}
