package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const defaultFor = 10 * time.Second

// errHelp asks for the manual.
var errHelp = errors.New("the manual is asked for")

// arguments are what is asked for.
type arguments struct {
	Size

	list   bool
	table  bool
	wanted []wanted
}

// wanted is a family to run, and which of its figures to print; nil is all.
type wanted struct {
	family  Family
	figures []string
}

func parseArguments(args []string, all []Family) (arguments, error) {
	if len(args) == 0 {
		return arguments{}, fmt.Errorf("say `list`, `help`, or `run` with names: %s", strings.Join(familyNames(all), ", "))
	}
	switch args[0] {
	case "list":
		return arguments{list: true}, nil
	case "help", "-h", "--help":
		return arguments{}, errHelp
	case "run":
	default:
		return arguments{}, fmt.Errorf("%q is no command: say `list`, `help` or `run`", args[0])
	}
	asked := arguments{}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&asked.For, "for", defaultFor, "")
	flags.Float64Var(&asked.Scale, "scale", 1, "")
	flags.BoolVar(&asked.Long, "long", false, "")
	flags.BoolVar(&asked.table, "table", false, "")
	flags.StringVar(&asked.Profile, "cpuprofile", "", "")
	names, err := parseMixed(flags, args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return arguments{}, errHelp
	}
	if err != nil {
		return arguments{}, err
	}
	if asked.For <= 0 || asked.Scale <= 0 {
		return arguments{}, errors.New("--for and --scale are more than 0")
	}
	asked.wanted, err = choose(names, all)
	return asked, err
}

// parseMixed parses flags before, between and after names.
func parseMixed(flags *flag.FlagSet, args []string) ([]string, error) {
	var names []string
	for {
		if err := flags.Parse(args); err != nil {
			return nil, fmt.Errorf("run: %w", err)
		}
		args = flags.Args()
		if len(args) == 0 {
			return names, nil
		}
		names, args = append(names, args[0]), args[1:]
	}
}

// choose finds families and figures by their names, each family once, in the order of all.
func choose(names []string, all []Family) ([]wanted, error) {
	chosen := make(map[string][]string, len(all))
	for _, name := range names {
		family, _, single := strings.Cut(name, ".")
		i := slices.IndexFunc(all, func(f Family) bool { return f.Name == family })
		if i < 0 {
			return nil, fmt.Errorf("there is no benchmark %q: there are %s", name, strings.Join(familyNames(all), ", "))
		}
		if !single {
			chosen[family] = nil
			continue
		}
		figures := all[i].matching(name)
		if len(figures) == 0 {
			return nil, fmt.Errorf("benchmark %s has no figure %q: it has %s", family, name, strings.Join(all[i].names(), ", "))
		}
		if before, there := chosen[family]; !there || before != nil {
			chosen[family] = append(before, figures...)
		}
	}
	var out []wanted
	for _, f := range all {
		figures, there := chosen[f.Name]
		if there || len(names) == 0 {
			out = append(out, wanted{family: f, figures: figures})
		}
	}
	return out, nil
}

func familyNames(all []Family) []string {
	names := make([]string, len(all))
	for i, f := range all {
		names[i] = f.Name
	}
	return names
}
