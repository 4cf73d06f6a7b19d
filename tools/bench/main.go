// Command bench measures Lockstep beside the bare technology it stands on, in the same run and taking turns, so that the ratio holds on a machine that is
// shared and noisy.
//
//	go run ./tools/bench list         print the names
//	go run ./tools/bench run NAME…    run some, or all without a name: one JSON line a figure
//
// Each benchmark brings up what it needs and takes less than a minute.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// Figure is one measured number beside its baseline.
type Figure struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Baseline float64 `json:"baseline"`
	// Ratio is value / baseline.
	Ratio float64 `json:"ratio"`
}

// benchmark measures one or more figures.
type benchmark struct {
	name, about string
	run         func(ctx context.Context) ([]Figure, error)
}

func benchmarks() []benchmark {
	return []benchmark{
		{"outbox", "rows committed to the outbox and published, beside a bare asynchronous publish of the same messages", outboxFigures},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	all := benchmarks()
	names := make([]string, len(all))
	for i, b := range all {
		names[i] = b.name
	}
	if len(args) == 1 && args[0] == "list" {
		for _, b := range all {
			if _, err := fmt.Fprintf(out, "%-10s %s\n", b.name, b.about); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
		return nil
	}
	if len(args) == 0 || args[0] != "run" {
		return fmt.Errorf("say `list`, or `run` with names: %s", strings.Join(names, ", "))
	}
	wanted := args[1:]
	if len(wanted) == 0 {
		wanted = names
	}
	for _, name := range wanted {
		i := slices.Index(names, name)
		if i < 0 {
			return fmt.Errorf("there is no benchmark %q: there are %s", name, strings.Join(names, ", "))
		}
		figures, err := all[i].run(ctx)
		if err != nil {
			return fmt.Errorf("benchmark %s: %w", name, err)
		}
		encoder := json.NewEncoder(out)
		for _, f := range figures {
			f.Ratio = f.Value / f.Baseline
			if err := encoder.Encode(f); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
	return nil
}
