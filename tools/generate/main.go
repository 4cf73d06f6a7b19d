// Command generate writes what is generated from schemas: Go types, the registry of event types,
// the API's code, the error codes, the AsyncAPI document.
//
//	generate             write the changed files
//	generate --check     fail if a committed file is stale or a change is incompatible; write nothing
//	generate release V   make the current schemas the baseline of later comparisons
//
// It runs anywhere inside the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

const usage = `Writes the files that are generated from schemas.

  generate                 write the changed files
  generate --check         fail if a committed file is stale, or if a change is incompatible with schemas/released;
                           write nothing
  generate release VERSION make the current schemas the released ones, such as v0.2.0

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	check := flags.Bool("check", false, "write nothing; fail if a file is stale or a change is incompatible")
	root := flags.String("root", "", "the repository's root; default: the folder above that holds go.work")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read flags: %w", err)
	}
	if *root == "" {
		found, err := findRoot()
		if err != nil {
			return err
		}
		*root = found
	}
	p, err := open(ctx, *root, stderr)
	if err != nil {
		return err
	}
	switch {
	case flags.NArg() == 0 && *check:
		return p.check(ctx)
	case flags.NArg() == 0:
		return p.generate(ctx, stdout)
	case flags.NArg() == 2 && flags.Arg(0) == "release" && !*check:
		return p.release(ctx, flags.Arg(1), stdout)
	default:
		return fmt.Errorf("unknown command %q: see generate --help", strings.Join(flags.Args(), " "))
	}
}

func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the repository: no folder above holds a go.work: " +
				"run it inside the repository or give --root")
		}
		dir = parent
	}
}
