// Package config fills a struct from a YAML file, the environment and flags, in this order; the values
// it holds before are the defaults. One struct tag names all three: the field at `nats.url` of the file
// is LOCKSTEP_NATS_URL and --nats-url.
//
//	type Config struct {
//		URL     config.URL    `yaml:"url" help:"where NATS is"`
//		Timeout time.Duration `yaml:"timeout" help:"how long to wait for an answer"`
//		Token   config.Secret `yaml:"token_file" help:"file that holds the token"`
//		OnReady func()        `yaml:"-"`
//	}
//
// Fields are string, bool, ints, floats, time.Duration, []string, map[string]string, Bytes, URL, Secret,
// any encoding.TextUnmarshaler, and structs of these (`yaml:",inline"` adds no level). The tags `help` and
// `oneof:"a|b"` go to the manual, the latter is enforced too. An empty variable counts as unset; a list
// is written a,b and a map k=v,k=v outside the file; a layer replaces a value, it never adds to it.
//
// Load reports every fault at once (Faults): what cannot be parsed, unknown keys with line and
// suggestion, unknown flags, and what the Validate methods of the struct and its parts return.
// Unknown variables are only warned of, since services share an environment. Secrets are never printed.
package config
