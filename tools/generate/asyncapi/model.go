package asyncapi

// The used part of the AsyncAPI 3.0 object model, in the order of the output.

type spec struct {
	AsyncAPI           string               `yaml:"asyncapi"`
	Info               info                 `yaml:"info"`
	DefaultContentType string               `yaml:"defaultContentType"` //nolint:tagliatelle // As in AsyncAPI.
	Channels           map[string]channel   `yaml:"channels"`
	Operations         map[string]operation `yaml:"operations"`
	Components         components           `yaml:"components"`
}

type info struct {
	Title       string `yaml:"title"`
	Version     string `yaml:"version"`
	Description string `yaml:"description"`
}

type channel struct {
	Address     string               `yaml:"address"`
	Description string               `yaml:"description"`
	Parameters  map[string]reference `yaml:"parameters"`
	Messages    map[string]reference `yaml:"messages"`
	Tags        []tag                `yaml:"tags"`
	Stream      stream               `yaml:"x-lockstep-stream"` //nolint:tagliatelle // As in AsyncAPI.
}

type stream struct {
	Name           string `yaml:"name"`
	Writer         string `yaml:"writer"`
	Keeps          string `yaml:"keeps"`
	MaxMessageSize int    `yaml:"max_message_bytes"`
}

type tag struct {
	Name string `yaml:"name"`
}

type reference struct {
	Ref string `yaml:"$ref"`
}

type operation struct {
	Action   string      `yaml:"action"`
	Channel  reference   `yaml:"channel"`
	Summary  string      `yaml:"summary"`
	Messages []reference `yaml:"messages"`
}

type components struct {
	Schemas    map[string]any       `yaml:"schemas"`
	Messages   map[string]message   `yaml:"messages"`
	Parameters map[string]parameter `yaml:"parameters"`
}

type message struct {
	Name        string    `yaml:"name"`
	Title       string    `yaml:"title"`
	Summary     string    `yaml:"summary"`
	ContentType string    `yaml:"contentType,omitempty"` //nolint:tagliatelle // As in AsyncAPI.
	Headers     any       `yaml:"headers"`
	Payload     any       `yaml:"payload"`
	Examples    []example `yaml:"examples,omitempty"`
}

type example struct {
	Headers map[string]any `yaml:"headers"`
	Payload any            `yaml:"payload"`
}

type parameter struct {
	Description string   `yaml:"description"`
	Default     string   `yaml:"default,omitempty"`
	Examples    []string `yaml:"examples,omitempty"`
}
