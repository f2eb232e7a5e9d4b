// What an application does with the official Go client, which speaks gRPC, as scenarios.
//
//	go-client SERVERS SCRATCH                  main addresses separated by commas; a folder for caches and logs
//	go-client --hold SERVER SCRATCH SERVICE... registers each service and keeps it until it is killed
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	arguments := os.Args[1:]
	holds := len(arguments) > 3 && arguments[0] == "--hold"
	if holds {
		arguments = arguments[1:]
	} else if len(arguments) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go-client SERVERS SCRATCH")
		os.Exit(2)
	}
	servers, scratch = strings.Split(arguments[0], ","), arguments[1]
	if holds {
		hold(arguments[2:])
		return
	}
	os.Exit(runAll(scenarios))
}

// holding is what a process says that has registered all it was asked to.
const holding = "holding"

func hold(names []string) {
	provider := at(0)
	for _, name := range names {
		register(provider, named(name).row(heldIP))
	}
	fmt.Println(holding)
	// Ends with whoever started it.
	_, _ = io.Copy(io.Discard, os.Stdin)
}
