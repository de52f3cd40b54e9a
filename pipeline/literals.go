package pipeline

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser/lexer"
)

// datelike matches what a person means as a date or time and the language would read as a subtraction.
var datelike = regexp.MustCompile(`^\d{1,4}([-/.]\d{1,4}){2}([Tt ].*)?$|^\d{1,2}(:\d{2})+$`)

// checkLiterals refuses constants whose text and value differ, since a file cannot say which of the two is meant: a
// leading zero anywhere, and as a whole expression also dates, 1.10, 1e3, 0x1F and 1_000. Inside quotes anything goes.
func checkLiterals(source string) error {
	text := strings.TrimSpace(source)
	if datelike.MatchString(text) {
		return quoteIt(text, "looks like a date or a time")
	}
	tokens, err := lexer.Lex(file.NewSource(source))
	if err != nil {
		return nil // the compiler reports it with its place
	}
	for _, t := range tokens {
		if t.Kind == lexer.Number && leadingZero(t.Value) {
			return &compileError{line: 1, column: t.From + 1, msg: fmt.Sprintf("number %s has a leading zero; write %s, or '%s' as text", t.Value, strings.TrimLeft(t.Value, "0_"), t.Value)}
		}
	}
	number := strings.TrimLeft(text, "+-")
	if isOneNumber(tokens) && !canonical(number) {
		return quoteIt(text, "is not how the number would be written out")
	}
	return nil
}

func quoteIt(text, why string) error {
	return &compileError{msg: fmt.Sprintf(`%s %s; write "'%s'" if the text is meant`, text, why, text)}
}

func leadingZero(number string) bool {
	return len(number) > 1 && number[0] == '0' && (number[1] == '_' || '0' <= number[1] && number[1] <= '9')
}

// isOneNumber says that the tokens are a number, perhaps with a sign, and nothing else.
func isOneNumber(tokens []lexer.Token) bool {
	if n := len(tokens); n > 0 && tokens[n-1].Kind == lexer.EOF {
		tokens = tokens[:n-1]
	}
	for i, t := range tokens {
		if i == len(tokens)-1 {
			return t.Kind == lexer.Number
		}
		if !t.Is(lexer.Operator, "-", "+") {
			return false
		}
	}
	return false
}

// canonical says that a number is written as it would be printed.
func canonical(text string) bool {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return strconv.FormatInt(i, 10) == text
	}
	f, err := strconv.ParseFloat(text, 64)
	return err == nil && strconv.FormatFloat(f, 'f', -1, 64) == text
}
