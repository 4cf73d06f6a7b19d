package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// envPrefix begins every environment variable that Lockstep reads.
const envPrefix = "LOCKSTEP_"

// Field is one setting.
type Field struct {
	Key     string   // path in the YAML file: nats.url
	Env     string   // environment variable: LOCKSTEP_NATS_URL
	Flag    string   // flag without dashes: nats-url
	Type    string   // string, bool, int, number, duration, size, url, file, list, map or text
	Help    string   // from the tag `help`
	OneOf   []string // allowed values, from the tag `oneof:"a|b"`; none allows any value
	Default string   // as text, with secrets hidden

	value  reflect.Value
	origin string // source of the current value: "default", config.yaml:3, LOCKSTEP_NATS_URL, --nats-url
	group  string // key of the enclosing struct, "" at the top
	given  []string
	flag   *pflag.Flag
}

// section is a struct of fields: a group in the manual and in the file.
type section struct {
	key   string
	help  string
	value reflect.Value // addressable
}

// Binding connects a struct to its keys, variables and flags. It is not safe for concurrent use.
type Binding struct {
	config   any
	prefix   string
	fields   []*Field
	sections []section
	byKey    map[string]*Field
}

// Bind reads the tags of the struct that cfg points to. It puts the prefix and a dot before every key:
// "state" turns nats.url into state.nats.url, LOCKSTEP_STATE_NATS_URL and --state-nats-url.
//
// It returns an error when the struct is wrong: a type that cannot be set, a field without a yaml
// tag, or two fields with the same flag.
func Bind(cfg any, prefix string) (*Binding, error) {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: want a pointer to a struct, got %T", cfg)
	}
	b := &Binding{config: cfg, prefix: prefix, byKey: map[string]*Field{}}
	if err := b.bindStruct(v.Elem(), prefix, ""); err != nil {
		return nil, fmt.Errorf("config: %T: %w", cfg, err)
	}
	seen := map[string]string{
		"config":       "--config",
		"help":         "--help",
		"version":      "--version",
		"print-config": "--print-config",
	}
	for _, f := range b.fields {
		// The keys a.b_c and a_b.c differ in the file, but have one variable and one flag.
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
	name, option, _ := strings.Cut(t.Tag.Get("yaml"), ",")
	if name == "-" || !t.IsExported() {
		return nil
	}
	_, isText := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr())
	isStruct := v.Kind() == reflect.Struct && !isText
	if option == "inline" {
		if !isStruct {
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
	if isStruct {
		return b.bindStruct(v, key, t.Tag.Get("help"))
	}
	f := &Field{
		Key: key, Type: typeName(v.Type(), isText), Help: t.Tag.Get("help"), Default: format(v),
		Env:  envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_")),
		Flag: strings.NewReplacer(".", "-", "_", "-").Replace(key), value: v, group: group, origin: "default",
	}
	if f.Type == "" {
		return fmt.Errorf("field %s: %w: %s", t.Name, errType, v.Type())
	}
	if oneOf := t.Tag.Get("oneof"); oneOf != "" {
		f.OneOf = strings.Split(oneOf, "|")
	}
	f.flag = f.pflag()
	b.fields = append(b.fields, f)
	b.byKey[key] = f
	return nil
}

// join joins two parts of a key with a dot. Either may be empty.
func join(prefix, name string) string { return strings.Trim(prefix+"."+name, ".") }

var errType = errors.New("this type cannot be configured")

// typeName returns the name of a type in the manual, "" when no setting can have it.
func typeName(t reflect.Type, isText bool) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[Bytes]():
		return "size"
	case reflect.TypeFor[Secret]():
		return "file"
	case reflect.TypeFor[URL]():
		return "url"
	case reflect.TypeFor[[]string]():
		return "list"
	case reflect.TypeFor[map[string]string]():
		return "map"
	}
	switch kind := t.Kind(); {
	case isText:
		return "text"
	case kind == reflect.String:
		return "string"
	case kind == reflect.Bool:
		return "bool"
	case kind >= reflect.Int && kind <= reflect.Uint64:
		return "int"
	case kind == reflect.Float32 || kind == reflect.Float64:
		return "number"
	}
	return ""
}

// format returns a value as it is written in the environment, "" for an empty one. It hides secrets.
func format(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case []string:
		return strings.Join(value, ",")
	case map[string]string:
		entries := make([]string, 0, len(value))
		for _, key := range slices.Sorted(maps.Keys(value)) {
			entries = append(entries, key+"="+value[key])
		}
		return strings.Join(entries, ",")
	case encoding.TextMarshaler:
		text, err := value.MarshalText()
		if err != nil {
			return ""
		}
		return string(text)
	case time.Duration: // 1h instead of 1h0m0s
		text := value.String()
		if strings.HasSuffix(text, "m0s") {
			text = strings.TrimSuffix(text, "0s")
		}
		if strings.HasSuffix(text, "h0m") {
			text = strings.TrimSuffix(text, "0m")
		}
		return text
	default:
		return fmt.Sprint(value)
	}
}
