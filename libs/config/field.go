package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// envPrefix begins every environment variable that Lockstep reads.
const envPrefix = "LOCKSTEP_"

// Field is one setting.
type Field struct {
	Key     string // path in the YAML file: nats.url
	Env     string // environment variable: LOCKSTEP_NATS_URL
	Flag    string // flag without dashes: nats-url
	Type    string // what a person writes: string, duration, size, …
	Help    string
	OneOf   []string // the allowed values, beside empty where that is the default; none = any
	Default string   // rendered, secrets hidden

	value  reflect.Value
	origin string // where the current value comes from
	group  string // key of the struct it belongs to, "" at the top
}

// section is a struct of fields: a group in the manual and in the file.
type section struct {
	key   string
	help  string
	value reflect.Value // addressable
}

// Binding ties a struct to its keys, variables and flags. It is not safe for concurrent use.
type Binding struct {
	prefix   string
	fields   []*Field
	sections []section
	byKey    map[string]*Field
	flags    map[string]*flagValue
}

// Bind reads the struct that cfg points to. The prefix, dots between words, is put before every key:
// "state" makes nats.url the setting state.nats.url, LOCKSTEP_STATE_NATS_URL, --state-nats-url. An error
// is a mistake in the struct: a type that cannot be set, a field without a yaml tag, two fields with
// one name.
func Bind(cfg any, prefix string) (*Binding, error) {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: want a pointer to a struct, got %T", cfg)
	}
	b := &Binding{prefix: prefix, byKey: map[string]*Field{}, flags: map[string]*flagValue{}}
	if err := b.bindStruct(v.Elem(), prefix, ""); err != nil {
		return nil, fmt.Errorf("config: %T: %w", cfg, err)
	}
	seen := map[string]string{"config": "--config", "help": "--help", "version": "--version", "print-config": "--print-config"}
	for _, f := range b.fields {
		// Keys a.b_c and a_b.c differ in the file and meet in the environment.
		if other, taken := seen[f.Flag]; taken {
			return nil, fmt.Errorf("config: %T: %s and %s are both --%s", cfg, other, f.Key, f.Flag)
		}
		seen[f.Flag] = f.Key
	}
	return b, nil
}

// Fields returns all settings in the order of the struct.
func (b *Binding) Fields() []Field {
	fields := make([]Field, len(b.fields))
	for i, f := range b.fields {
		fields[i] = *f
	}
	return fields
}

func (b *Binding) bindStruct(v reflect.Value, key, help string) error {
	b.sections = append(b.sections, section{key: key, help: help, value: v})
	for i := range v.NumField() {
		if err := b.bindField(v.Type().Field(i), v.Field(i), key); err != nil {
			return err
		}
	}
	return nil
}

func (b *Binding) bindField(t reflect.StructField, v reflect.Value, group string) error {
	name, options, _ := strings.Cut(t.Tag.Get("yaml"), ",")
	if name == "-" || !t.IsExported() {
		return nil
	}
	if options == "inline" {
		if v.Kind() != reflect.Struct || isScalar(v) {
			return fmt.Errorf("field %s: only a struct can be inline", t.Name)
		}
		return b.bindStruct(v, group, t.Tag.Get("help"))
	}
	if name == "" {
		return fmt.Errorf("field %s: no yaml tag", t.Name)
	}
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return fmt.Errorf("field %s: %q is not snake_case", t.Name, name)
	}
	key := join(group, name)
	if v.Kind() == reflect.Struct && !isScalar(v) {
		return b.bindStruct(v, key, t.Tag.Get("help"))
	}
	kind, err := typeName(v.Type())
	if err != nil {
		return fmt.Errorf("field %s: %w", t.Name, err)
	}
	f := &Field{
		Key: key, Type: kind, Help: t.Tag.Get("help"), value: v, group: group, origin: "default",
		Env:  envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_")),
		Flag: strings.NewReplacer(".", "-", "_", "-").Replace(key),
	}
	if oneOf := t.Tag.Get("oneof"); oneOf != "" {
		f.OneOf = strings.Split(oneOf, "|")
	}
	f.Default = format(v)
	b.fields = append(b.fields, f)
	b.byKey[key] = f
	return nil
}

// join puts a dot between two parts of a key where both are given.
func join(prefix, name string) string {
	switch {
	case prefix == "":
		return name
	case name == "":
		return prefix
	default:
		return prefix + "." + name
	}
}

var errType = errors.New("this type cannot be configured")

func isScalar(v reflect.Value) bool {
	_, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr())
	return ok
}

func typeName(t reflect.Type) (string, error) {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration", nil
	case reflect.TypeFor[Bytes]():
		return "size", nil
	case reflect.TypeFor[Secret]():
		return "file", nil
	case reflect.TypeFor[URL]():
		return "url", nil
	case reflect.TypeFor[[]string]():
		return "list", nil
	case reflect.TypeFor[map[string]string]():
		return "map", nil
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "text", nil
	}
	switch t.Kind() {
	case reflect.String:
		return "string", nil
	case reflect.Bool:
		return "bool", nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "int", nil
	case reflect.Float32, reflect.Float64:
		return "number", nil
	default:
		return "", fmt.Errorf("%w: %s", errType, t)
	}
}
