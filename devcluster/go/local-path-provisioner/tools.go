//go:build tools

// Package tools pins the provisioner of volumes for the development cluster.
package tools

import _ "github.com/rancher/local-path-provisioner"
