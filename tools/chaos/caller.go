package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/retry"
	"lockstep.internal/tools/client"
)

const (
	// relayTarget is the name of the target in the configuration of each agent.
	relayTarget = "echo"
	// callTimeout bounds a request through a relay. A request without an answer is not judged.
	callTimeout = 30 * time.Second
	// longestCallPause is the longest time between two requests of a caller.
	longestCallPause = 500 * time.Millisecond
)

// answerOf returns the answer of an agent's target.
func answerOf(agent, question string) string { return agent + " answers " + question }

// serveTarget answers each line with the agent's name until the listener closes.
func serveTarget(listener net.Listener, agent string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close() //nolint:errcheck // the caller sees it
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if _, err := fmt.Fprintln(conn, answerOf(agent, lines.Text())); err != nil {
					return
				}
			}
		}()
	}
}

// caller sends requests to the targets of all agents through all relays, one after another.
type caller struct {
	name   string
	rng    *rand.Rand
	relays []*client.Relay
	agents map[string]int64
	names  []string // of the agents, sorted
	record *recorder
}

// run calls until the load ends. An unanswered request is no error.
func (c *caller) run(ctx, load context.Context) error {
	for n := 0; load.Err() == nil; n++ {
		agent, relay := c.names[c.rng.IntN(len(c.names))], c.relays[c.rng.IntN(len(c.relays))]
		question := c.name + "-" + strconv.Itoa(n)
		if answer, err := c.ask(ctx, relay, c.agents[agent], question); err == nil {
			c.record.write(entry{Relayed: &Relayed{Agent: agent, Question: question, Answer: answer}})
		}
		if retry.Sleep(load, upTo(c.rng, longestCallPause)) != nil {
			return nil //nolint:nilerr // the load has ended
		}
	}
	return nil
}

// ask sends a line and reads the answer.
func (c *caller) ask(ctx context.Context, relay *client.Relay, agent int64, question string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := relay.Open(ctx, agent, relayTarget)
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() }) // ends the read
	defer stop()
	_, writeErr := fmt.Fprintln(stream, question)
	line, readErr := bufio.NewReader(stream).ReadString('\n')
	closeErr := stream.Close()
	if readErr != nil {
		return "", errors.Join(writeErr, readErr, io.ErrUnexpectedEOF)
	}
	if writeErr != nil {
		return "", errors.Join(writeErr, closeErr)
	}
	return strings.TrimSuffix(line, "\n"), nil
}
