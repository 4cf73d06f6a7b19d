package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Program describes a program in its manual.
type Program struct {
	Name    string // of the binary: lockstep-state
	About   string // a few sentences: what it does and needs
	Version string
	// Switches are flags without a value that are not settings.
	Switches []Switch
}

// Switch is a flag without a value. Load sets On when the flag is given.
type Switch struct {
	Flag string // without the dashes
	Help string
	On   *bool
}

// Input is the source of the configuration.
type Input struct {
	Args    []string  // command line without the program
	Environ []string  // NAME=value pairs, as of os.Environ
	Stdout  io.Writer // for the output of --help, --version and --print-config
}

// ErrPrinted is returned by Load after --help, --version or --print-config: the program must exit with
// status 0.
var ErrPrinted = errors.New("config: printed the requested output")

// Load fills the struct that cfg points to from the file named by --config or LOCKSTEP_CONFIG, from the
// environment and from the flags. It returns warnings for the operator, a sentence each. The error is
// [Problems], with all of them; cfg is not usable then.
func Load(cfg any, program Program, input Input) ([]string, error) {
	b, err := Bind(cfg, "")
	if err != nil {
		return nil, err
	}
	flags, _ := b.flagSets(program)
	if err := parseFlags(flags, input.Args); err != nil {
		return nil, Problems{{Message: err.Error()}}
	}
	switch {
	case isSet(flags, "help"):
		return nil, printAndStop(input.Stdout, b.Manual(program))
	case isSet(flags, "version"):
		return nil, printAndStop(input.Stdout, program.Name+" "+program.Version+"\n")
	}
	path, err := flags.GetString("config")
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	for _, pair := range input.Environ {
		if name, value, _ := strings.Cut(pair, "="); name == envPrefix+"CONFIG" && path == "" {
			path = value
		}
	}
	var problems Problems
	if path != "" {
		problems = b.readFile(path)
	}
	warnings, environProblems := b.applyEnviron(input.Environ)
	problems = append(problems, environProblems...)
	problems = append(problems, b.applyFlags()...)
	if problems = b.validate(problems); len(problems) > 0 {
		return warnings, problems
	}
	if !isSet(flags, "print-config") {
		return warnings, nil
	}
	text, err := b.Print()
	if err != nil {
		return warnings, err
	}
	return warnings, printAndStop(input.Stdout, text)
}

// flagSets returns all flags, and those that every program has.
func (b *Binding) flagSets(program Program) (all, standard *pflag.FlagSet) {
	all, standard = pflag.NewFlagSet(program.Name, pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	standard.SortFlags = false
	standard.String("config", "", "YAML `file` with settings ["+envPrefix+"CONFIG]")
	standard.Bool("print-config", false, "print the effective configuration with secrets hidden, and exit")
	for _, s := range program.Switches {
		standard.BoolVar(s.On, s.Flag, false, s.Help)
	}
	standard.Bool("version", false, "print the version, and exit")
	standard.BoolP("help", "h", false, "print this manual, and exit")
	all.SetOutput(io.Discard)
	all.AddFlagSet(standard)
	for _, f := range b.fields {
		all.AddFlag(f.flag)
	}
	return all, standard
}

func isSet(flags *pflag.FlagSet, name string) bool {
	return flags.Lookup(name).Value.String() == "true"
}

func parseFlags(flags *pflag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		suggestion := nearest(unknown.GetSpecifiedName(), names)
		if suggestion != "" {
			suggestion = "--" + suggestion
		}
		return fmt.Errorf("%w%s", err, didYouMean(suggestion))
	}
	if err == nil && flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; write settings as --flag=value", flags.Arg(0))
	}
	return err //nolint:wrapcheck // names the flag
}

func printAndStop(stdout io.Writer, text string) error {
	if _, err := io.WriteString(stdout, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return ErrPrinted
}

func (b *Binding) readFile(path string) Problems {
	file, err := os.Open(path)
	if err != nil {
		return Problems{{Message: "cannot read the configuration file: " + err.Error()}}
	}
	defer file.Close() //nolint:errcheck // only read
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return Problems{{Message: "cannot read the configuration file: " + err.Error()}}
	}
	return b.applyFile(path, raw)
}
