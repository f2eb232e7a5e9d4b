package main

// What the scenarios share: the lines spoken with whoever started the program, checks, and waiting.

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

const (
	// Time in which a change must reach every client.
	soon = 10 * time.Second
	// Time in which a client must have found another node. The client waits between its tries.
	reconnected = 40 * time.Second
	// Time of a whole scenario.
	patience = 120 * time.Second
)

// A scenario is run, or this client is without it for a reason.
type scenario struct {
	name    string
	run     func()
	without string
}

// A failure ends a scenario; every check below panics with one.
type failure string

func fail(format string, values ...any) {
	panic(failure(fmt.Sprintf(format, values...)))
}

func check(condition bool, format string, values ...any) {
	if !condition {
		fail(format, values...)
	}
}

func must(err error, what string) {
	check(err == nil, "%s: %v", what, err)
}

// until repeats an attempt until it gives no error.
func until(what string, within time.Duration, attempt func() error) {
	deadline := time.Now().Add(within)
	for {
		err := attempt()
		if err == nil {
			return
		}
		check(time.Now().Before(deadline), "not within %v: %s: %v", within, what, err)
		time.Sleep(50 * time.Millisecond)
	}
}

func say(format string, values ...any) {
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, values...), "\n", " "))
}

var input = bufio.NewReader(os.Stdin)

// ask wants something done to the cluster and waits until it is.
func ask(what string) {
	say("? %s", what)
	answer, err := input.ReadString('\n')
	must(err, "reading the answer to "+what)
	check(strings.TrimSpace(answer) == "done", "asked to %s, the answer was %q", what, answer)
}

// outcome is empty when the scenario passed, else the reason why not.
func outcome(s scenario) string {
	reason := make(chan string, 1)
	go func() {
		defer func() {
			switch ended := recover().(type) {
			case nil:
				reason <- ""
			case failure:
				reason <- string(ended)
			default: // the client itself
				reason <- fmt.Sprintf("panic: %v at %s", ended, debug.Stack())
			}
		}()
		s.run()
	}()
	select {
	case text := <-reason:
		return text
	case <-time.After(patience):
		return fmt.Sprintf("not done within %v", patience)
	}
}

// runAll gives the exit code.
func runAll(scenarios []scenario) int {
	code := 0
	for _, s := range scenarios {
		if s.run == nil {
			say("without %s: %s", s.name, s.without)
		} else if reason := outcome(s); reason == "" {
			say("ok %s", s.name)
		} else {
			say("FAILED %s: %s", s.name, reason)
			code = 1
		}
	}
	return code
}
