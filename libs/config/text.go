package config

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parse sets v from what a person wrote in the environment, in a flag or as a scalar of the file.
func parse(text string, v reflect.Value) error {
	switch target := v.Addr().Interface().(type) {
	case *time.Duration:
		return parseDuration(text, target)
	case *[]string:
		*target = parseList(text)
		return nil
	case *map[string]string:
		return parseMap(text, target)
	case encoding.TextUnmarshaler:
		return target.UnmarshalText([]byte(strings.TrimSpace(text))) //nolint:wrapcheck // the type's own sentence
	}
	if v.Kind() == reflect.String {
		v.SetString(text)
		return nil
	}
	return parseNumber(strings.TrimSpace(text), v)
}

func parseNumber(text string, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(strings.ToLower(text))
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		v.SetBool(b)
	case reflect.Float32, reflect.Float64:
		n, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a number such as 0.5", text)
		}
		v.SetFloat(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number from 0 to %d", text, ^uint64(0)>>(64-v.Type().Bits()))
		}
		v.SetUint(n)
	default:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number of %d bits", text, v.Type().Bits())
		}
		v.SetInt(n)
	}
	return nil
}

func parseDuration(text string, target *time.Duration) error {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err == nil {
		*target = d
		return nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return fmt.Errorf("%q has no unit; write %ss, %sm or %sh", text, text, text, text)
	}
	return fmt.Errorf("%q is not a duration such as 1m30s", text)
}

// parseList splits a,b at commas; blanks around an entry and empty entries are dropped.
func parseList(text string) []string {
	var list []string
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			list = append(list, entry)
		}
	}
	return list
}

func parseMap(text string, target *map[string]string) error {
	m := map[string]string{}
	for _, entry := range parseList(text) {
		key, value, ok := strings.Cut(entry, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return fmt.Errorf("%q is not key=value", entry)
		}
		if _, twice := m[key]; twice {
			return fmt.Errorf("key %q is given twice", key)
		}
		m[key] = strings.TrimSpace(value)
	}
	*target = m
	return nil
}

// format renders v so that parse reads the same back, except what is hidden.
func format(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return formatDuration(value)
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
	default:
		return fmt.Sprint(value)
	}
}

// formatDuration writes 1h for what the standard library calls 1h0m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
