package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Program is what the manual says about the program itself.
type Program struct {
	Name    string // of the binary: lockstep-state
	About   string // a few sentences: what it does and what it needs
	Version string
	// Questions are flags beyond those of the settings. Load notes which were asked and leaves the answer to the program.
	Questions []Question
}

// Question is a flag without a value.
type Question struct {
	Flag  string // without the dashes
	Help  string // for the manual
	Asked *bool  // set by Load
}

// Input is where the configuration comes from.
type Input struct {
	Args    []string  // command line without the program
	Environ []string  // NAME=value pairs, as of os.Environ
	Stdout  io.Writer // receives the answers to --help, --version and --print-config
}

// ErrAnswered is returned by Load when the command line asked a question (--help, --version,
// --print-config) and it has been answered: the program is to end successfully.
var ErrAnswered = errors.New("config: the question on the command line is answered")

// Load fills the struct that cfg points to from the file named by --config or LOCKSTEP_CONFIG, the
// environment and the flags. Anything wrong is returned at once as Faults, and cfg is not to be used
// then. The strings are warnings for the operator, a sentence each.
func Load(cfg any, program Program, input Input) ([]string, error) {
	b, err := Bind(cfg, "")
	if err != nil {
		return nil, err
	}
	flags := pflag.NewFlagSet(program.Name, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	b.AddFlags(flags)
	path := flags.String("config", lookup(input.Environ, envPrefix+"CONFIG"), "")
	help := flags.BoolP("help", "h", false, "")
	version := flags.Bool("version", false, "")
	printConfig := flags.Bool("print-config", false, "")
	for _, q := range program.Questions {
		flags.BoolVar(q.Asked, q.Flag, false, "")
	}
	if fault := b.parseFlags(flags, input.Args); fault != nil {
		return nil, Faults{*fault}
	}
	switch {
	case *help:
		return nil, answer(input.Stdout, b.Manual(program))
	case *version:
		return nil, answer(input.Stdout, program.Name+" "+program.Version+"\n")
	}

	var faults Faults
	if *path != "" {
		faults = append(faults, b.readFile(*path)...)
	}
	warnings, fromEnviron := b.applyEnviron(input.Environ)
	faults = append(faults, fromEnviron...)
	faults = append(faults, b.applyFlags()...)
	faults = b.validate(faults)
	if len(faults) > 0 {
		return warnings, faults
	}
	if *printConfig {
		text, err := b.Print()
		if err != nil {
			return warnings, err
		}
		return warnings, answer(input.Stdout, text)
	}
	return warnings, nil
}

func answer(stdout io.Writer, text string) error {
	if _, err := io.WriteString(stdout, text); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return ErrAnswered
}

func lookup(environ []string, name string) string {
	for _, pair := range environ {
		if n, value, _ := strings.Cut(pair, "="); n == name {
			return value
		}
	}
	return ""
}

func (b *Binding) readFile(path string) Faults {
	file, err := os.Open(path)
	if err != nil {
		return Faults{{Message: "cannot read the configuration file: " + err.Error()}}
	}
	defer file.Close() //nolint:errcheck // only read
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return Faults{{Message: "cannot read the configuration file: " + err.Error()}}
	}
	return b.applyFile(path, raw)
}

func (b *Binding) parseFlags(flags *pflag.FlagSet, args []string) *Fault {
	err := flags.Parse(args)
	if err == nil {
		if flags.NArg() > 0 {
			return &Fault{Message: fmt.Sprintf("unexpected argument %q; settings are given as --flag=value", flags.Arg(0))}
		}
		return nil
	}
	message := err.Error()
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if suggestion := nearest(unknown.GetSpecifiedName(), func(yield func(string) bool) {
			flags.VisitAll(func(f *pflag.Flag) { yield(f.Name) })
		}); suggestion != "" {
			message += "; did you mean --" + suggestion + "?"
		}
	}
	return &Fault{Message: message}
}
