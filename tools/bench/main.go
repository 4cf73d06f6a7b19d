// Command bench measures Lockstep beside the bare technology it stands on, in the same run and taking turns, so that the ratios hold on a machine that is
// shared and noisy.
//
//	go run ./tools/bench list                      print the names
//	go run ./tools/bench run [flags] [NAME…]       run families or single figures, all without a name: one JSON line a figure
//
// The text of `help` is the manual. Each family is a file of its own that says what it measures and what it measures it against.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
)

func main() {
	if serveAsChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	all := families()
	asked, err := parseArguments(args, all)
	if errors.Is(err, errHelp) {
		return manual(out, all)
	}
	if err != nil {
		return err
	}
	if asked.list {
		return list(out, all)
	}
	return profiled(asked.Profile, func() error { return measure(ctx, asked, out, progress) })
}

// profiled writes what this process does with the CPU into a file, when one is named.
func profiled(path string, fn func() error) (err error) {
	if path == "" {
		return fn()
	}
	file, err := os.Create(path) //nolint:gosec // the file that is asked for
	if err != nil {
		return fmt.Errorf("open the profile: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return fmt.Errorf("begin the profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	return fn()
}

// measure runs what is asked for, family by family, and prints each family's figures as soon as they are there.
func measure(ctx context.Context, asked arguments, out, progress io.Writer) error {
	var figures []Figure
	for _, wanted := range asked.wanted {
		_, _ = fmt.Fprintf(progress, "bench: %s …\n", wanted.family.Name)
		size := asked.Size
		size.Figures = wanted.figures
		measured, err := wanted.family.Run(ctx, size)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if err != nil {
			return fmt.Errorf("benchmark %s: %w", wanted.family.Name, err)
		}
		found, err := wanted.family.figures(measured, size)
		if err != nil {
			return err
		}
		if !asked.table {
			if err := writeLines(out, found); err != nil {
				return err
			}
		}
		figures = append(figures, found...)
	}
	if asked.table {
		return writeTable(out, figures)
	}
	return nil
}
