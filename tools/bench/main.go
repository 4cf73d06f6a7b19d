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
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	if runAsChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(benchmarks(), os.Stdout, os.Stderr, os.Args[1:]).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(all []Benchmark, out, progress io.Writer, args []string) *cobra.Command {
	root := &cobra.Command{
		Use: "bench", Short: "Measure Lockstep beside the technology that it uses", SilenceUsage: true,
		SilenceErrors: true,
		Long: "Measure Lockstep beside the technology that it uses, in the same run and in turns.\n\n" +
			"A figure is a JSON line with name, value, unit, baseline, ratio, peers, aim, met and note. " +
			"Values are medians;\n" +
			"ratio is value / baseline. baseline and ratio are null without a baseline; the fields after them " +
			"are absent\n" +
			"when empty.",
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
	var size Size
	var short, table bool
	run := &cobra.Command{
		Use: "run [NAME…]", Short: "Run benchmarks (ingest) or figures (ingest.rows_per_s), all by default",
		RunE: func(c *cobra.Command, names []string) error {
			if size.For <= 0 || size.Scale <= 0 {
				return errors.New("--for and --scale must be positive")
			}
			if short {
				size.For, size.Scale, size.Short = shortFor, shortScale, true
			}
			selected, err := choose(all, names, short)
			if err != nil {
				return err
			}
			return profiled(size.Profile, func() error { return measure(c.Context(), selected, size, table, out, progress) })
		},
	}
	flags := run.Flags()
	flags.DurationVar(&size.For, "for", 10*time.Second, "`duration` of one comparison; it takes at least three turns")
	flags.Float64Var(&size.Scale, "scale", 1, "multiply the number of messages or workspaces of a turn by this `factor`")
	flags.BoolVar(&size.Long, "long", false, "measure the figures that take more than a minute, too")
	flags.BoolVar(&short, "short", false,
		"measure only figures with a margin, in a few minutes; fail when a ratio is beyond its margin")
	flags.BoolVar(&table, "table", false, "print a table at the end instead of JSON lines")
	flags.StringVar(&size.Profile, "cpuprofile", "",
		"write the CPU profile of this process to `file`, and those of its children to files with their names appended")
	root.AddCommand(run)
	return root
}

// profiled writes the CPU profile of fn to a file, unless path is empty.
func profiled(path string, fn func() error) (err error) {
	if path == "" {
		return fn()
	}
	file, err := os.Create(path) //nolint:gosec // named on the command line
	if err != nil {
		return fmt.Errorf("open the profile: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return fmt.Errorf("start the profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	return fn()
}

// measure runs the selected benchmarks and prints the figures of each as soon as they are known.
func measure(ctx context.Context, selected []selection, size Size, table bool, out, progress io.Writer) error {
	var all []Figure
	var slow []string
	for _, s := range selected {
		_, _ = fmt.Fprintf(progress, "bench: %s …\n", s.benchmark.Name)
		size.Figures = s.figures
		measured, err := s.benchmark.Run(ctx, size)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if err != nil {
			return fmt.Errorf("benchmark %s: %w", s.benchmark.Name, err)
		}
		figures, beyond, err := figuresOf(s.benchmark.Name, measured, size)
		if err != nil {
			return err
		}
		if !table {
			if err := writeLines(out, figures); err != nil {
				return err
			}
		}
		all, slow = append(all, figures...), append(slow, beyond...)
	}
	if table {
		if err := writeTable(out, all); err != nil {
			return err
		}
	}
	if size.Short && len(slow) > 0 {
		return fmt.Errorf("figures beyond their margin:\n  %s", strings.Join(slow, "\n  "))
	}
	return nil
}
