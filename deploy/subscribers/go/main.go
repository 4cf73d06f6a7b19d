// Command subscriber prints deploy facts, one per line. A restart continues with the first
// unacknowledged fact.
//
//	go run . CREDENTIALS
//
// The program acknowledges a fact after it has processed it. A fact without an acknowledgment is
// redelivered after half a minute. So process facts idempotently, or deduplicate them by ce-id.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// credentials is the file that `lockstep subscriber create` writes.
type credentials struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	InboxPrefix string `json:"inbox_prefix"`
	Stream      string `json:"stream"`
	Consumer    string `json:"consumer"`
	CA          string `json:"ca"`
}

// fact has the fields that this program prints. See schemas/events/deploy.fact.v1.schema.json for
// all fields.
type fact struct {
	Fact     string `json:"fact"`
	Workload struct {
		Namespace string `json:"namespace"`
		Kind      string `json:"kind"`
		Name      string `json:"name"`
	} `json:"workload"`
	DurationMS *int64 `json:"duration_ms"`
}

const (
	batch = 100
	// turn is how long one request waits for facts. It is short, because a broken connection loses
	// the response.
	turn  = 10 * time.Second
	pause = time.Second
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(
			os.Stderr,
			"usage: go run . CREDENTIALS\n\nCREDENTIALS is the file that `lockstep subscriber create` wrote.",
		)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "subscriber:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	raw, err := os.ReadFile(path) //nolint:gosec // The path is an argument of the program.
	if err != nil {
		return fmt.Errorf("read the credentials: %w", err)
	}
	var c credentials
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("read the credentials: %w", err)
	}
	options := []nats.Option{
		nats.Name("lockstep subscriber (Go)"), nats.UserInfo(c.User, c.Password), nats.CustomInboxPrefix(c.InboxPrefix),
		// The server closes every connection within an hour, and the client authenticates again.
		nats.IgnoreAuthErrorAbort(), nats.MaxReconnects(-1),
	}
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	conn, err := nats.Connect(c.URL, options...)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	for ctx.Err() == nil {
		if err := read(ctx, js, c); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "subscriber: %v; trying on\n", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// read prints facts for a while.
func read(ctx context.Context, js jetstream.JetStream, c credentials) error {
	ctx, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	consumer, err := js.Consumer(ctx, c.Stream, c.Consumer)
	if err != nil {
		return fmt.Errorf("look up consumer %s: %w", c.Consumer, err)
	}
	messages, err := consumer.Fetch(batch, jetstream.FetchContext(ctx))
	if err != nil {
		return fmt.Errorf("ask for facts: %w", err)
	}
	for message := range messages.Messages() {
		if err := show(message); err != nil {
			return err
		}
		if err := message.DoubleAck(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	if err := messages.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("wait for facts: %w", err)
	}
	return nil
}

func show(message jetstream.Msg) error {
	at, err := message.Metadata()
	if err != nil {
		return fmt.Errorf("where on the stream is %s: %w", message.Subject(), err)
	}
	var event struct {
		CustomData fact `json:"customData"` //nolint:tagliatelle // As in CDEvents.
	}
	if err := json.Unmarshal(message.Data(), &event); err != nil {
		return fmt.Errorf("read fact %d: %w", at.Sequence.Stream, err)
	}
	f, took := event.CustomData, ""
	if f.DurationMS != nil {
		took = fmt.Sprintf("%d ms", *f.DurationMS)
	}
	fmt.Printf(
		"%d\t%s\t%s/%s/%s\t%s\t%s\n",
		at.Sequence.Stream,
		f.Fact,
		f.Workload.Namespace,
		f.Workload.Kind,
		f.Workload.Name,
		took,
		message.Headers().Get("ce-id"),
	)
	return nil
}
