package yamlx

import (
	"fmt"
	"strings"
)

// Lookup gives the value of an environment variable and whether it is set, as os.LookupEnv does.
type Lookup func(name string) (string, bool)

// variableError is a mistake in a ${…}; at is the byte offset in the text where it stands.
type variableError struct {
	at  int
	msg string
}

func (e *variableError) Error() string { return e.msg }

// expand replaces the variables of one scalar text.
//
//	${VAR}            the value, byte for byte; an unset variable is an error
//	${VAR:-default}   the default when VAR is unset or empty, as in the shell; ${VAR:default} is the same
//	$${               the two characters ${
//
// Every other $ stands for itself. What a variable holds is not scanned again. replaced says that a variable was used.
func expand(text string, env Lookup) (out string, replaced bool, err error) {
	if !strings.Contains(text, "${") {
		return text, false, nil
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		rest := text[i:]
		switch {
		case strings.HasPrefix(rest, "$${"):
			b.WriteString("${")
			i += 3
		case strings.HasPrefix(rest, "${"):
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return "", false, &variableError{i, "${ without a closing }; write $${ for a literal ${"}
			}
			v, err := variable(rest[2:end], env)
			if err != nil {
				return "", false, &variableError{i, err.Error()}
			}
			b.WriteString(v)
			replaced = true
			i += end + 1
		default:
			b.WriteByte(text[i])
			i++
		}
	}
	return b.String(), replaced, nil
}

// variable gives the value of what stands between ${ and }.
func variable(inner string, env Lookup) (string, error) {
	name, def, hasDefault := strings.Cut(inner, ":")
	if !isVariableName(name) {
		return "", fmt.Errorf("${%s} is not a variable: write ${NAME} or ${NAME:-default}, and $${ for a literal ${", inner)
	}
	if hasDefault {
		if def != "" && strings.ContainsRune("?+=", rune(def[0])) {
			return "", fmt.Errorf("${%s}: only a default is possible: ${%s:-default}", inner, name)
		}
		if strings.Contains(def, "${") {
			return "", fmt.Errorf("${%s}: a default cannot hold another variable", inner)
		}
		def = strings.TrimPrefix(def, "-")
	}
	v, set := env(name)
	if set && (v != "" || !hasDefault) {
		return v, nil
	}
	if hasDefault {
		return def, nil
	}
	return "", fmt.Errorf("environment variable %s is not set; set it, or write ${%s:-default}", name, name)
}

func isVariableName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
