//go:build tools

// Package tools pins Helm for the development cluster.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
