// Program load is both ends of the load benchmark: fake replicas that sleep where real ones compute,
// and a client that opens streams and notes when their tokens come.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: load replicas|client FLAGS"))
	}
	switch os.Args[1] {
	case "replicas":
		serveReplicas(os.Args[2:])
	case "client":
		runClient(os.Args[2:])
	default:
		fail(fmt.Errorf("%q is neither replicas nor client", os.Args[1]))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}
