package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// flagValue keeps what was given, so that flags can be parsed before the layers below them are applied
// and all faults come out together.
type flagValue struct {
	field *Field
	given []string
}

func (v *flagValue) String() string { return v.field.Default }
func (v *flagValue) Type() string   { return v.field.Type }
func (v *flagValue) Set(text string) error {
	v.given = append(v.given, text)
	return nil
}

// AddFlags mounts a flag for each setting. What they are given takes effect in ApplyFlags. A list or
// map flag may be repeated.
func (b *Binding) AddFlags(flags *pflag.FlagSet) {
	for _, f := range b.fields {
		value := &flagValue{field: f}
		b.flags[f.Flag] = value
		flag := flags.VarPF(value, f.Flag, "", f.usage())
		if f.Type == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// usage is the one-line help: pflag adds the default.
func (f *Field) usage() string {
	parts := []string{f.Help}
	if len(f.OneOf) > 0 {
		parts = append(parts, "("+strings.Join(f.OneOf, ", ")+")")
	}
	return strings.Join(append(parts, "["+f.Env+"]"), " ")
}

// ApplyFlags sets what the flags were given. The error is Faults.
func (b *Binding) ApplyFlags() error {
	if faults := b.applyFlags(); len(faults) > 0 {
		return faults
	}
	return nil
}

func (b *Binding) applyFlags() Faults {
	var faults Faults
	for _, f := range b.fields {
		value := b.flags[f.Flag]
		if value == nil || len(value.given) == 0 {
			continue
		}
		text := value.given[len(value.given)-1]
		if f.Type == "list" || f.Type == "map" {
			text = strings.Join(value.given, ",")
		}
		f.origin = "--" + f.Flag
		if err := parse(text, f.value); err != nil {
			faults = faults.with(f.fault(err.Error()))
		}
	}
	return faults
}
