// Package config fills a struct from a YAML file, the environment and flags. A flag overrides the
// environment, which overrides the file; the values in the struct are the defaults. One struct tag
// names all three: nats.url in the file is LOCKSTEP_NATS_URL and --nats-url.
//
//	type Config struct {
//		URL     config.URL    `yaml:"url" help:"address of NATS"`
//		Timeout time.Duration `yaml:"timeout" help:"timeout of a request"`
//		Token   config.Secret `yaml:"token_file" help:"file with the token"`
//		OnReady func()        `yaml:"-"`
//	}
//
// The YAML library decodes values of all three layers, so a field can have every type that it decodes
// from a scalar, []string, map[string]string, or a struct of such fields. [Load] reports every problem at
// once. It rejects unknown keys and flags, and warns of unknown variables. Secrets are never printed.
package config
