// Command errcodes generates the Go table of error codes from schemas/errors.json.
//
//	errcodes -in schemas/errors.json -out schemas/gen/errcode/errcode.go
//
// It refuses a registry that breaks its own rules (see registry.go) and writes nothing then, so that
// the generated table can be used without checks.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "errcodes:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("errcodes", flag.ContinueOnError)
	flags.SetOutput(stderr)
	in := flags.String("in", "schemas/errors.json", "registry of error codes")
	out := flags.String("out", "schemas/gen/errcode/errcode.go", "Go file to write")
	check := flags.Bool("check", false, "write nothing; fail when the Go file is not up to date")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read flags: %w", err)
	}
	raw, err := os.ReadFile(*in)
	if err != nil {
		return fmt.Errorf("read the registry: %w", err)
	}
	registry, err := parse(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", *in, err)
	}
	source, err := render(registry)
	if err != nil {
		return fmt.Errorf("render %s: %w", *out, err)
	}
	if *check {
		current, err := os.ReadFile(*out)
		if err != nil {
			return fmt.Errorf("read the generated file: %w", err)
		}
		if !bytes.Equal(current, source) {
			return fmt.Errorf("%s is not what %s says; generate it again", *out, *in)
		}
		return nil
	}
	if err := os.WriteFile(*out, source, 0o644); err != nil { //nolint:gosec // a source file, readable like its neighbours
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
