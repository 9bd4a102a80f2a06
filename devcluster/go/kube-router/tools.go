//go:build tools

// Package tools pins kube-router for the development cluster.
package tools

import _ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
