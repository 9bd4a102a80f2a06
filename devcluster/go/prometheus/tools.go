//go:build tools

// Package tools pins Prometheus for the development cluster.
package tools

import _ "github.com/prometheus/prometheus/cmd/prometheus"
