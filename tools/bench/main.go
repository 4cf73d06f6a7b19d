// Command bench measures Lockstep beside the technology that it uses, in the same run and in turns,
// so that the ratios hold on a shared and noisy machine. The table figures.md describes every
// figure.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockstep.internal/tools/testkit/programs"
)

func main() {
	if runAsStandIn() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(os.Stdout, os.Stderr, os.Args[1:]).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(out, progress io.Writer, args []string) *cobra.Command {
	root := &cobra.Command{
		Use: "bench", Short: "Measure Lockstep beside the technology that it uses", SilenceUsage: true,
		SilenceErrors: true,
		Long: "Measure Lockstep beside the technology that it uses, in the same run and in turns.\n\n" +
			"A figure is a JSON line. Values are medians; ratio is value / baseline, and null without a baseline.",
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(progress)
	root.AddCommand(&cobra.Command{
		Use: "list", Short: "Print the table of figures", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(out, figuresTable)
			return err //nolint:wrapcheck // of the terminal
		},
	})
	r := run{out: out, progress: progress}
	size := &r.size
	runCommand := &cobra.Command{
		Use: "run [NAME…]", Short: "Run benchmarks (ingest) or figures (ingest.rows_per_s), all by default",
		RunE: func(c *cobra.Command, names []string) error {
			if size.For <= 0 || size.Scale <= 0 {
				return errors.New("--for and --scale must be positive")
			}
			selected, err := choose(benchmarks(), names, r.isShort)
			if err != nil {
				return err
			}
			ctx := c.Context()
			if size.Programs, err = programs.Services(ctx); err != nil {
				return fmt.Errorf("build the services: %w", err)
			}
			if r.isShort {
				size.For, size.Scale = shortFor, shortScale
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, shortLimit, fmt.Errorf("it took longer than %s", shortLimit))
				defer cancel()
			}
			return r.measure(ctx, selected)
		},
	}
	flags := runCommand.Flags()
	flags.DurationVar(&size.For, "for", 10*time.Second, "`duration` of one comparison; it takes at least three turns")
	flags.Float64Var(&size.Scale, "scale", 1, "multiply the number of messages or workspaces of a turn by this `factor`")
	flags.BoolVar(&size.Long, "long", false, "measure the figures that take more than a minute, too")
	flags.BoolVar(&r.isShort, "short", false,
		"measure only figures with a margin, in a few minutes; fail when a ratio is beyond its margin twice")
	flags.BoolVar(&r.isTable, "table", false, "print a table at the end instead of JSON lines")
	root.AddCommand(runCommand)
	return root
}

// run is a run of benchmarks.
type run struct {
	size Size
	// isShort checks the ratios against their margins.
	isShort bool
	// isTable prints a table at the end instead of lines.
	isTable       bool
	out, progress io.Writer
}

// measure runs the selected benchmarks and prints the figures of each as soon as they are known. A short run measures a
// figure beyond its margin once more, and fails if it is beyond it again.
func (r run) measure(ctx context.Context, selected []selection) error {
	var all []Figure
	var failed []string
	for _, s := range selected {
		figures, err := r.figures(ctx, s)
		if beyond := gate(s.specs, figures); err == nil && r.isShort && len(beyond) > 0 {
			_, _ = fmt.Fprintf(r.progress, "bench: once more, since\n  %s\n", strings.Join(beyond, "\n  "))
			figures, err = r.figures(ctx, s)
			failed = append(failed, gate(s.specs, figures)...)
		}
		if err == nil && !r.isTable {
			err = writeLines(r.out, figures)
		}
		if err != nil {
			return err
		}
		all = append(all, figures...)
	}
	if r.isTable {
		if err := writeTable(r.out, all); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("figures beyond their margin:\n  %s", strings.Join(failed, "\n  "))
	}
	return nil
}

func (r run) figures(ctx context.Context, s selection) ([]Figure, error) {
	began := time.Now()
	r.size.Figures = s.figures()
	measured, err := s.benchmark.Run(ctx, r.size)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("benchmark %s: %w", s.benchmark.Name, err)
	}
	_, _ = fmt.Fprintf(r.progress, "bench: %s in %.0f s\n", s.benchmark.Name, time.Since(began).Seconds())
	return figuresOf(s.benchmark.Name, measured, r.size)
}
