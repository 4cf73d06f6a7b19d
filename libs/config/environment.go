package config

import (
	"fmt"
	"regexp"
	"strings"
)

// injected matches what Kubernetes puts into every pod for a Service called lockstep-…
var injected = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// ApplyEnviron sets what NAME=value pairs (os.Environ) say. The error is Faults. The strings are warnings
// of LOCKSTEP_ variables that look meant for these settings and are none of them.
func (b *Binding) ApplyEnviron(environ []string) ([]string, error) {
	warnings, faults := b.applyEnviron(environ)
	if len(faults) > 0 {
		return warnings, faults
	}
	return warnings, nil
}

func (b *Binding) applyEnviron(environ []string) ([]string, Faults) {
	var warnings []string
	var faults Faults
	byEnv := make(map[string]*Field, len(b.fields))
	for _, f := range b.fields {
		byEnv[f.Env] = f
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || value == "" {
			continue
		}
		f, ok := byEnv[name]
		if !ok {
			if warning := b.unknownVariable(name); warning != "" {
				warnings = append(warnings, warning)
			}
			continue
		}
		f.origin = name
		if err := parse(value, f.value); err != nil {
			faults = faults.with(f.fault(err.Error()))
		}
	}
	return warnings, faults
}

// unknownVariable returns the warning for a variable that nothing here reads, "" where it is most
// likely another service's.
func (b *Binding) unknownVariable(name string) string {
	if name == envPrefix+"CONFIG" || injected.MatchString(name) {
		return ""
	}
	suggestion := nearest(name, func(yield func(string) bool) {
		for _, f := range b.fields {
			if !yield(f.Env) {
				return
			}
		}
	})
	if suggestion != "" {
		return fmt.Sprintf("nothing reads %s; did you mean %s?", name, suggestion)
	}
	for _, f := range b.fields {
		if f.group != "" && strings.HasPrefix(name, envPrefix+strings.ToUpper(strings.ReplaceAll(f.group, ".", "_"))+"_") {
			return "nothing reads " + name
		}
	}
	return ""
}
